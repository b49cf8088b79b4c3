//! Events for a replica: where it begins, what it is sent, and until when.

use std::sync::Arc;
use std::time::{Duration, Instant};

use dromon_binlog::{BinlogState, Position};

use super::connection::{Connection, Ended, OUT};
use super::feed::{Feed, FeedError};
use super::server::unix_now;
use super::session::errors;
use super::wants::{From, Wants};
use crate::log::Level;
use crate::net::Silence;
use crate::store::{Cursor, Found, Kind, Next, Place, Refused, StoreError, View, Wanted};
use crate::wire::{Failure, eof, put_packet};

/// As long may the relay have no file to begin with, or be behind the replica.
const PLACE_TIME: Duration = Duration::from_secs(10);
/// How often a waiting dump looks whether its replica is still there.
const LOOK: Duration = Duration::from_secs(1);
/// A replica that moves here may have what the primary, a replica itself, gets only then.
const ON_THE_WAY: Duration = Duration::from_secs(10);
/// As much may the primary's clock be ahead of the relay's, in seconds.
const CLOCKS: u32 = 60;

/// See [`Connection::begin`].
type Beginning = (Place, Option<BinlogState>, Wanted, Position);

/// What cannot be read. An error stops a replica for good; that descriptors are short does not.
fn unreadable(error: StoreError) -> Ended {
    match error.is_shortage() {
        true => Ended::Short(error),
        false => Ended::Refused(Failure::new(errors::DUMP, error.to_string())),
    }
}

impl Connection<'_> {
    /// Events, as wanted, until it goes or an error ends them.
    pub(super) fn dump(&mut self, wants: &Wants) -> Result<(), Ended> {
        let sequence = self.frames.sequence();
        match self.feed(wants, sequence) {
            Err((Ended::Refused(failure), sequence)) => self.refuse(sequence, &failure),
            Err((ended, _)) => Err(ended),
            Ok(sequence) => {
                let mut out = Vec::new();
                put_packet(&mut out, sequence, &eof());
                self.put(&out)
            }
        }
    }

    /// Feeds a replica until it goes. Errors come with the sequence number of the next packet.
    fn feed(&mut self, wants: &Wants, sequence: u8) -> Result<u8, (Ended, u8)> {
        let server = self.server;
        let id = self
            .registered
            .as_ref()
            .map(|r| r.server_id)
            .filter(|id| *id != 0);
        let came = Instant::now();
        let now = u32::try_from(unix_now()).unwrap_or(u32::MAX);
        let late = now.max(server.view.newest()).saturating_add(CLOCKS);
        let began = self.begin(wants).map_err(|e| (e, sequence))?;
        let (place, state, mut wanted, before) = began;
        if wants.other_ways {
            wanted.has_other_ways();
        }
        let has = match &wants.from {
            From::Gtid(position) => position.clone(),
            _ if server.view.kind().by_place() => place.as_position(),
            From::Set(_) | From::File(..) => before,
        };
        if let (Some(id), Some(r)) = (id, &self.registered) {
            let mut registry = server.registry();
            registry.begins(id, &r.host, r.port, self.number, place.file, server.now());
            if let Ok(address) = self.stream.tcp().peer_addr() {
                registry.at(id, self.number, address.ip(), self.congestion());
            }
            registry.applies(id, self.number, wants.channel.clone());
            let by_gtid = matches!(wants.from, From::Gtid(_));
            registry.comes_with(id, self.number, &has, by_gtid);
            drop(registry);
            // A leftover connection of it looks now.
            server.view.wake();
        }
        let mut feed = Feed::new(
            server.options.server_id,
            wants.checksum,
            wants.annotate,
            wanted,
            sequence,
        );
        let until = wants.until.as_ref();
        let until = until.map(|until| server.view.not_there(until, &has, place, state.as_ref()));
        feed.has(has);
        if let Some(until) = until {
            feed.until(until);
        }
        feed.came(late);
        feed.policy(server.policy(wants.server_id));
        if server.view.is_mirror() {
            feed.mirrors();
        }
        if !wants.mariadb {
            feed.is_mysql();
        }
        let result = self.stream_to(&mut feed, wants, place, state, id, came);
        if let Some(id) = id {
            server.registry().ends(id, self.number, server.now());
        }
        match result {
            Ok(()) => Ok(feed.sequence()),
            Err(ended) => Err((ended, feed.sequence())),
        }
    }

    /// Where it begins, all groups before, what is left out, and, of one that comes by file and byte, the last
    /// groups before that.
    fn begin(&self, wants: &Wants) -> Result<Beginning, Ended> {
        let view = &self.server.view;
        let refuse = |why: String| Ended::Refused(Failure::new(errors::DUMP, why));
        self.wait_for_a_file()?;
        match &wants.from {
            From::Gtid(position) => self.begin_behind(view.find(position)),
            From::Set(has) => self.begin_behind(view.find_set(has)),
            From::File(name, at) => {
                let file = match name.is_empty() {
                    true => view.oldest(),
                    false => view.number(name),
                };
                let Some(file) = file else {
                    return Err(refuse(format!("There is no file {name} on this relay.")));
                };
                let place = Place {
                    file,
                    at: (*at).max(4),
                };
                self.wait_for(place)?;
                match view.before(place) {
                    Ok(Some(before)) => Ok((place, None, Wanted::all(), before)),
                    Ok(None) => Err(refuse(format!(
                        "No event begins at byte {at} of {}.",
                        view.name(file)
                    ))),
                    Err(error) => Err(unreadable(error)),
                }
            }
        }
    }

    /// Where a replica with GTIDs begins, as it was found.
    fn begin_behind(
        &self,
        found: Result<Result<Found, Refused>, StoreError>,
    ) -> Result<Beginning, Ended> {
        let view = &self.server.view;
        match found {
            Err(error) => Err(unreadable(error)),
            Ok(Err(refused)) => Err(Ended::Refused(Failure::new(
                errors::DUMP,
                refused.to_string(),
            ))),
            Ok(Ok(Found { begin: None, .. })) => Err(Ended::Nothing),
            Ok(Ok(Found {
                begin: Some(begin),
                damage,
            })) => {
                if let Some(damage) = damage {
                    self.server.log.say(Level::Error, &damage.to_string());
                }
                let ahead = begin.wanted.awaited(&view.state(), &view.executed());
                if !ahead.is_empty() {
                    let text = format!(
                        "A replica has {ahead}, which has not come here yet. It waits for what follows."
                    );
                    self.server.log.say(Level::Note, &text);
                }
                // MySQL's files say it themselves.
                let state = (view.kind() == Kind::MariaDb).then_some(begin.state.mariadb);
                Ok((begin.place, state, begin.wanted, Position::new()))
            }
        }
    }

    /// A relay that is new has nothing until its primary has said something.
    fn wait_for_a_file(&self) -> Result<(), Ended> {
        let view = &self.server.view;
        let until = Instant::now() + PLACE_TIME;
        while view.oldest().is_none() && Instant::now() < until {
            if view.is_closed() {
                return Err(Ended::Ending);
            }
            view.wait(Place::default(), LOOK);
        }
        Ok(())
    }

    /// A replica that comes from the primary itself may be ahead of a mirror. An error would stop it.
    fn wait_for(&self, place: Place) -> Result<(), Ended> {
        let view = &self.server.view;
        let until = Instant::now() + PLACE_TIME;
        while view.is_mirror() && view.end() < place {
            if view.is_closed() {
                return Err(Ended::Ending);
            }
            if Instant::now() > until {
                return Err(Ended::Nothing);
            }
            view.wait(view.end(), LOOK);
        }
        Ok(())
    }

    /// A replica with GTIDs that has all before a file and nothing of it gets it as those do that come from the file
    /// before: it is told if the primary was restarted then.
    fn beginning(&self, feed: &Feed, place: Place, state: Option<&BinlogState>) -> Place {
        let has_nothing = state.is_some() && *feed.wanted() == Wanted::all();
        // One that cannot be read is told when it is.
        let head = has_nothing.then(|| self.server.view.head(place.file));
        match head {
            Some(Ok(head)) if head.body == place.at => Place { at: 4, ..place },
            _ => place,
        }
    }

    fn stream_to(
        &mut self,
        feed: &mut Feed,
        wants: &Wants,
        place: Place,
        state: Option<BinlogState>,
        id: Option<u32>,
        came: Instant,
    ) -> Result<(), Ended> {
        let server = self.server;
        let view = Arc::clone(&server.view);
        let damaged = |error: StoreError| {
            if !error.is_shortage() {
                server.log.say(Level::Error, &error.to_string());
            }
            unreadable(error)
        };
        let mut name = view.name(place.file);
        let place = self.beginning(feed, place, state.as_ref());
        let mut cursor = Cursor::new(Arc::clone(&view), place);
        let mut hints = view.hints();
        let feeding = |e: FeedError, name: &str, at: u64| match e {
            FeedError::Refused(refused) => {
                Ended::Refused(Failure::new(errors::DUMP, refused.to_string()))
            }
            other => damaged(StoreError::Damaged {
                file: name.to_owned(),
                at,
                what: other.to_string(),
            }),
        };
        if place.at == 4 {
            feed.begin_file(&name);
        } else {
            let head = view.head(place.file).map_err(damaged)?;
            feed.begin(&name, place.at, &head.format_event, state.as_ref())
                .map_err(|e| feeding(e, &name, 4))?;
        }
        let heartbeat = match wants.heartbeat_ns {
            0 => server.options.heartbeat,
            ns => Duration::from_nanos(ns),
        };
        let mut sent = Instant::now();
        let by_place = view.kind().by_place();
        loop {
            if by_place {
                feed.has(cursor.place().as_position());
            }
            if feed.is_over() {
                return self.flush(feed, &mut sent, id);
            }
            match cursor.look().map_err(damaged)? {
                Next::Event(len) => {
                    let at = cursor.place().at;
                    let place = cursor.place();
                    let hint = |key| hints.look(place, key);
                    if feed.wanted().awaits() {
                        feed.now(u32::try_from(unix_now()).unwrap_or(u32::MAX));
                    }
                    feed.event(cursor.event(len), hint)
                        .map_err(|e| feeding(e, &name, at))?;
                    cursor.pass(len);
                    // Much may be left out in silence.
                    if feed.out().is_empty() && sent.elapsed() >= heartbeat {
                        let behind = self.behind(feed, wants);
                        feed.heartbeat(&name, cursor.place().at, behind);
                    }
                    if feed.out().len() >= OUT
                        || !feed.out().is_empty() && sent.elapsed() >= heartbeat
                    {
                        self.flush(feed, &mut sent, id)?;
                        self.still_wanted(&view, id)?;
                        self.still_fits(feed, came)?;
                    }
                }
                Next::File(number) => {
                    let next = view.name(number);
                    feed.next_file(&next)
                        .map_err(|e| feeding(e, &name, cursor.place().at))?;
                    name = next;
                    cursor.turn(Place {
                        file: number,
                        at: 4,
                    });
                    if let Some(id) = id {
                        server
                            .registry()
                            .enters(id, self.number, number, server.now());
                    }
                }
                Next::End => {
                    self.flush(feed, &mut sent, id)?;
                    if wants.non_block {
                        return Ok(());
                    }
                    let left = heartbeat.saturating_sub(sent.elapsed());
                    if view.wait(cursor.place(), left.min(LOOK)) {
                        continue;
                    }
                    self.still_wanted(&view, id)?;
                    self.still_there()?;
                    self.still_fits(feed, came)?;
                    if sent.elapsed() >= heartbeat {
                        let behind = self.behind(feed, wants);
                        feed.heartbeat(&name, cursor.place().at, behind);
                        self.flush(feed, &mut sent, id)?;
                    }
                }
            }
        }
    }

    fn still_wanted(&self, view: &View, id: Option<u32>) -> Result<(), Ended> {
        if view.is_closed() {
            return Err(Ended::Ending);
        }
        match id {
            Some(id) if !self.server.registry().is_current(id, self.number) => Err(Ended::Replaced),
            _ => Ok(()),
        }
    }

    /// What a heartbeat tells a relay: how many seconds all that it was given is behind the primary.
    fn behind(&self, feed: &Feed, wants: &Wants) -> u32 {
        if !wants.lag {
            return 0;
        }
        let ms = self
            .server
            .relay_lag_ms()
            .map(|ms| ms.saturating_add(self.server.view.lag_ms(feed.given())));
        ms.map_or(u32::MAX, |ms| {
            u32::try_from(ms.div_ceil(1000)).unwrap_or(u32::MAX)
        })
    }

    /// What the replica has and the relay does not may still come, until the primary has nothing more.
    fn still_fits(&self, feed: &mut Feed, came: Instant) -> Result<(), Ended> {
        if !feed.wanted().awaits()
            || self
                .server
                .complete()
                .is_none_or(|at| at < came + ON_THE_WAY)
        {
            return Ok(());
        }
        let view = &self.server.view;
        let fits = match view.kind() {
            Kind::MySql => feed.complete_set(&view.executed()),
            Kind::MariaDb | Kind::Mirror => feed.complete(&view.state()),
        };
        fits.map_err(|why| Ended::Refused(Failure::new(errors::DUMP, why.to_string())))
    }

    fn flush(&mut self, feed: &mut Feed, sent: &mut Instant, id: Option<u32>) -> Result<(), Ended> {
        if !feed.out().is_empty() {
            self.put(feed.out())?;
            feed.sent();
            *sent = Instant::now();
            if let Some(id) = id {
                let mut registry = self.server.registry();
                registry.was_sent(id, self.number, feed.given(), feed.groups(), feed.joined());
                if let Some(compressor) = &self.compressor {
                    registry.squeezed(id, self.number, compressor.count());
                }
            }
        }
        Ok(())
    }

    /// A replica says nothing while it is fed; that it went can be read.
    fn still_there(&mut self) -> Result<(), Ended> {
        let found = self.stream.silence();
        match found.map_err(|error| self.stuck(error))? {
            Silence::There => Ok(()),
            // Its end, or that it quits.
            Silence::Broken => Err(Ended::Gone),
        }
    }
}
