//! Any value of any kind, in any spelling: what is shown can be set.

use proptest::prelude::*;

use super::*;

/// A value that the kind takes, in one of its spellings.
fn valid(kind: Kind) -> BoxedStrategy<String> {
    let text = |words: &'static [&'static str]| prop::sample::select(words).prop_map(String::from);
    match kind {
        Kind::Bool => text(&[
            "yes", "NO", "y", "N", "true", "False", "on", "off", "1", "0",
        ])
        .boxed(),
        Kind::Int(low, high) => (low..=high).prop_map(|n| n.to_string()).boxed(),
        Kind::Size(low, high) => prop_oneof![
            (low..=high).prop_map(|n| n.to_string()),
            (low >> 10..=high.min(1 << 40) >> 10).prop_map(|n| format!("{n}k")),
        ]
        .boxed(),
        Kind::SizeOrAuto => text(&["auto", "AUTO", "1", "64K", "1M"]).boxed(),
        Kind::Mask => text(&["0", "0x1", "0XfF", "17"]).boxed(),
        Kind::Double(low, high) => (low..=high).prop_map(|v| v.to_string()).boxed(),
        Kind::Span(low) => {
            let span = (low * 1_000_000..i64::MAX as u64).prop_map(Duration::from_nanos);
            prop_oneof![
                span.clone().prop_map(format_span),
                span.clone().prop_map(|d| format_span(d).to_lowercase()),
                span.prop_map(|d| format!("{}.{:09}", d.as_secs(), d.subsec_nanos())),
            ]
            .boxed()
        }
        Kind::Choice(words) => text(words).boxed(),
        Kind::Text => "[ -~äß;\\\\=]{0,20}".boxed(),
        Kind::Port => (1..=65535u32).prop_map(|n| n.to_string()).boxed(),
        Kind::Listen => text(&["a", "tcp://[::]:1", "ssl://1.2.3.4", "[::1]:5"]).boxed(),
        Kind::Node => text(&["a", "[::1]", "::1", "1.2.3.4", "a.b-c"]).boxed(),
        Kind::Address => text(&["", "a", "a:1", "[::1]:5", "::1", "1.2.3.4"]).boxed(),
        Kind::Member => text(&["", UUID]).boxed(),
    }
}

fn assignment() -> impl Strategy<Value = (&'static str, String)> {
    (0..TABLE.len()).prop_flat_map(|at| (Just(TABLE[at].name), valid(TABLE[at].kind)))
}

proptest! {
    #[test]
    fn no_text_panics(text in "\\PC{0,80}", phase in 0..4) {
        let phase = [Phase::Init, Phase::Connect, CONNECTED, APART][phase as usize];
        let mut options = fresh();
        let _ = options.parse_init(&text);
        let _ = options.set(&text, phase);
        for spec in TABLE {
            if options.set_one(spec.name, &text, phase, &mut Outcome::default()).is_ok() {
                options.settle(phase);
            }
        }
    }

    #[test]
    fn setting_the_whole_string_back_changes_nothing(
        init in prop::collection::vec(assignment(), 0..8),
        later in prop::collection::vec(assignment(), 0..4),
        apart in any::<bool>(),
    ) {
        let list = |items: &[(&str, String)]| -> String {
            items.iter().map(|(k, v)| format!("{k}={};", escape(v))).collect()
        };
        let mut options = fresh();
        let outcome = options.parse_init(&list(&init));
        prop_assert!(outcome.is_ok(), "{:?}", outcome);
        let _ = options.set(&list(&later), Phase::Runtime { connected: !apart });
        let (shown, settings) = (options.to_string(), options.settings().clone());
        for phase in [CONNECTED, APART, Phase::Connect, Phase::Init] {
            let outcome = options.set(&shown, phase);
            prop_assert_eq!(&outcome.error, &None);
            prop_assert!(outcome.changed.is_empty() && outcome.actions.is_empty());
            prop_assert_eq!(&outcome.notes, &vec![]);
        }
        prop_assert_eq!(options.to_string(), shown.clone());
        let mut given = settings;
        given.wait_prim_timeout_given = true;
        prop_assert_eq!(options.settings(), &given);
        // And it is a configuration that starts another node in the same way, but for the
        // secret, whose place the string does not tell.
        given.secret_file = PathBuf::new();
        let mut other = fresh();
        let outcome = other.parse_init(&shown);
        prop_assert!(outcome.is_ok(), "{:?}", outcome);
        prop_assert_eq!(other.to_string(), shown);
        prop_assert_eq!(other.settings(), &given);
    }

    #[test]
    fn spans_read_back(nanos in 0..i64::MAX as u64) {
        let span = Duration::from_nanos(nanos);
        prop_assert_eq!(parse_span(&format_span(span)), Some(span));
    }

    #[test]
    fn texts_of_values_never_panic(text in "\\PC{0,24}") {
        let _ = parse_span(&text);
        let _ = parse_size(&text);
        let _ = parse_int(&text);
        let _ = parse_double(&text);
        let _ = parse_span(&format!("P{text}"));
    }
}

#[test]
fn spans_in_all_spellings() {
    for (text, seconds) in [
        ("PT5S", 5.0),
        ("pt5s", 5.0),
        ("PT0.5S", 0.5),
        ("PT1M", 60.0),
        ("PT100M", 6000.0),
        ("PT1.5M", 90.0),
        ("P1D", 86400.0),
        ("P1DT2H", 93600.0),
        ("P1W", 604800.0),
        ("PT1H2M3S", 3723.0),
        ("PT0S", 0.0),
        ("5", 5.0),
        ("7.500000", 7.5),
        ("0.000000", 0.0),
    ] {
        let span = Duration::from_secs_f64(seconds);
        assert_eq!(parse_span(text), Some(span), "{text}");
    }
    for text in [
        "",
        "P",
        "PT",
        "P1",
        "PT5",
        "P5S",
        "PTS",
        "PT5S5",
        "PT5S1M",
        "PT1M1M",
        "P1DT",
        "P1Y",
        "P1M",
        "-1",
        "+1",
        "1e3",
        "inf",
        "nan",
        ".5",
        "5.",
        "PT.S",
        "PT1.2.3S",
        "PT5Sé",
        "9999999999999",
        "P99999999999999999999D",
    ] {
        assert_eq!(parse_span(text), None, "{text}");
    }
    for (seconds, text) in [
        (0.0, "PT0S"),
        (0.5, "PT0.5S"),
        (5.0, "PT5S"),
        (60.0, "PT1M"),
        (6000.0, "PT1H40M"),
        (86400.0, "P1D"),
        (93600.5, "P1DT2H0.5S"),
        (10.25, "PT10.25S"),
    ] {
        assert_eq!(format_span(Duration::from_secs_f64(seconds)), text);
    }
}
