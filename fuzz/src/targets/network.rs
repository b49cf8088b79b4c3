//! What a stranger can send: greetings, frames, proofs, certificates; and what members do.

use bytes::{Bytes, BytesMut};
use dromon_order::wire::{
    FLAG_LAST, FRAME_HEADER, FrameKind, GREETING_MAX, Hello, HelloAnswer, Identity, MAGIC, Purpose,
    Refusal, frame_header, read_frame, read_greeting, room_wanted,
};
use dromon_order::{Frame, Lane, fuzzed};
use dromon_writeset::Uuid;

use super::{Target, stable};
use crate::bytes_in::Input;

/// `read_greeting`, `Hello`, `HelloAnswer`. The first byte: sealed by the fuzzer or as it
/// is; the second: how much comes first.
pub const GREETING: Target = Target {
    name: "greeting",
    run: greeting,
    seeds: greetings,
};

fn greeting(data: &[u8]) {
    let mut input = Input::new(data);
    let (sealed, first) = (input.u8() & 1 == 1, usize::from(input.u8()));
    let body = input.rest();
    let bytes = if sealed {
        let body = &body[..body.len().min(GREETING_MAX)];
        let mut all = MAGIC.to_vec();
        all.extend_from_slice(&(body.len() as u32).to_le_bytes());
        all.extend_from_slice(&crc32c::crc32c(body).to_le_bytes());
        all.extend_from_slice(body);
        all
    } else {
        body.to_vec()
    };
    let whole = read_greeting(&mut BytesMut::from(&bytes[..]));
    // The same in two parts: what is refused early would have been refused later.
    let mut parts = BytesMut::from(&bytes[..first.min(bytes.len())]);
    let early = read_greeting(&mut parts);
    match early {
        Ok(None) => {
            parts.extend_from_slice(&bytes[first.min(bytes.len())..]);
            let late = read_greeting(&mut parts).map_err(|e| std::mem::discriminant(&e));
            let whole = whole.clone().map_err(|e| std::mem::discriminant(&e));
            assert_eq!(late, whole);
        }
        Ok(Some(_)) => assert_eq!(early, whole),
        Err(_) => assert!(whole.is_err(), "refused in part, taken whole"),
    }
    let Ok(Some(body)) = whole else { return };
    if let Ok(hello) = Hello::decode(body.clone()) {
        assert_eq!(Hello::decode(again(&hello.encode())), Ok(hello));
    }
    if let Ok(answer) = HelloAnswer::decode(body) {
        assert_eq!(HelloAnswer::decode(again(&answer.encode())), Ok(answer));
    }
}

fn again(encoded: &Bytes) -> Bytes {
    read_greeting(&mut BytesMut::from(&encoded[..]))
        .ok()
        .flatten()
        .expect("what was encoded is whole")
}

fn identity() -> Identity {
    Identity {
        cluster: "a cluster".into(),
        history: Uuid([3; 16]),
        raft_id: 77,
        addr: "10.0.0.1:4567".into(),
    }
}

fn greetings() -> Vec<Vec<u8>> {
    let hello = Hello::new(Purpose::Lane(Lane::ALL[0]), identity()).encode();
    let ask = Hello::new(Purpose::Request, Identity::default()).encode();
    let answer = |verdict| {
        let answer = HelloAnswer {
            verdict,
            versions: (1, 2),
            who: identity(),
            instance: 9,
        };
        answer.encode()
    };
    let all = [hello, ask, answer(Ok(1)), answer(Err(Refusal::evicted(5)))];
    let mut seeds: Vec<Vec<u8>> = all.iter().map(|g| [&[0, 9], &g[..]].concat()).collect();
    seeds.extend(all.iter().map(|g| [&[1, 40], &g[16..]].concat()));
    seeds.extend([&b"\0\x05GET / HTTP/1.0\r\n\r\n"[..], b"\0\x02SSH-2.0-x"].map(<[u8]>::to_vec));
    seeds
}

/// `read_frame` over a stream. The first byte as above: sealed frames are
/// kind, flags, length, body.
pub const FRAMES: Target = Target {
    name: "frames",
    run: frames,
    seeds: frame_seeds,
};

fn frames(data: &[u8]) {
    let mut input = Input::new(data);
    let sealed = input.u8() & 1 == 1;
    let mut buf = BytesMut::new();
    if sealed {
        while !input.is_empty() {
            let (kind, flags, len) = (input.u8(), input.u8(), input.u16() & 0xfff);
            let body = input.take(len.into());
            let mut head = [0; FRAME_HEADER];
            head[..4].copy_from_slice(&(body.len() as u32).to_le_bytes());
            head[4] = kind;
            head[5] = flags;
            let sum = crc32c::crc32c_append(crc32c::crc32c(&head[..8]), body);
            head[8..].copy_from_slice(&sum.to_le_bytes());
            buf.extend_from_slice(&head);
            buf.extend_from_slice(body);
        }
    } else {
        buf.extend_from_slice(input.rest());
    }
    loop {
        let room = room_wanted(&buf);
        assert!(
            room <= (64 << 10).max(4 * buf.len()),
            "{room} bytes of room"
        );
        let before = buf.clone();
        let Ok(Some(frame)) = read_frame(&mut buf) else {
            return;
        };
        let body = frame.body.clone();
        let head = frame_header(frame.kind, frame.flags, &Frame::from(body.clone()));
        assert_eq!(head[..], before[..FRAME_HEADER]);
        assert_eq!(body, before[FRAME_HEADER..FRAME_HEADER + body.len()]);
    }
}

fn frame_seeds() -> Vec<Vec<u8>> {
    let mut plain = vec![0];
    let mut sealed = vec![1];
    for (n, kind) in [
        FrameKind::Data,
        FrameKind::Ping,
        FrameKind::Pong,
        FrameKind::Request,
        FrameKind::Answer,
        FrameKind::NoAnswer,
    ]
    .into_iter()
    .enumerate()
    {
        let body = Bytes::from(vec![n as u8; 8 + n]);
        let flags = if n > 2 { FLAG_LAST } else { 0 };
        plain.extend_from_slice(&frame_header(kind, flags, &Frame::from(body.clone())));
        plain.extend_from_slice(&body);
        sealed.extend_from_slice(&[kind.code(), flags, body.len() as u8, 0]);
        sealed.extend_from_slice(&body);
    }
    vec![plain, sealed]
}

/// What engines say to one another.
pub const ENGINE_MESSAGE: Target = Target {
    name: "engine_message",
    run: |data| stable("an engine's message", data, fuzzed::engine_message),
    seeds: fuzzed::engine_message_seeds,
};

/// The exchange of proofs: whatever a stranger says, it is not believed.
pub const SECRET: Target = Target {
    name: "secret",
    run: |data| {
        let mut input = Input::new(data);
        let first = usize::from(input.u8());
        let (first, second) = (input.take(first), input.rest());
        assert!(
            !fuzzed::stranger_is_believed(first, second),
            "somebody without the secret got in"
        );
    },
    seeds: || {
        let step = |kind: u8| [&[kind][..], &[9; 32]].concat();
        let talk = |a: u8, b: u8| [&[33][..], &step(a), &step(b)].concat();
        vec![talk(3, 5), talk(4, 6), vec![1, 7], talk(1, 5)]
    },
};

/// The fields of a certificate that are read here.
pub const CERTIFICATE: Target = Target {
    name: "certificate",
    run: |data| {
        fuzzed::is_certificate(data);
    },
    seeds: || {
        let time = |t: &[u8]| [&[0x17, t.len() as u8][..], t].concat();
        let validity = [time(b"260101000000Z"), time(b"360101000000Z")].concat();
        let inner = [
            &[0xa0, 3, 2, 1, 2, 2, 1, 5, 0x30, 1, 0, 0x30, 1, 0, 0x30][..],
            &[validity.len() as u8],
            &validity,
        ]
        .concat();
        let list = |c: &[u8]| [&[0x30, 0x82, 0, c.len() as u8][..], c].concat();
        vec![list(&list(&inner))]
    },
};
