//! `dromon replica` alone, quick to build: settings as `key=value`.

fn main() {
    let mut given = dromon_replica::Given::default();
    for arg in std::env::args().skip(1) {
        given.line(&arg, "argument".into()).expect("a setting");
    }
    let config = given.settle().unwrap_or_else(|e| panic!("{e}"));
    let done = dromon_replica::run(&config).unwrap_or_else(|e| panic!("{e}"));
    std::process::exit(i32::from(!done));
}
