//! What a statement can do, as far as its first words say.

/// What a statement in the stream means for keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Meaning {
    /// It belongs to the transaction around it and touches no row.
    Frame,
    /// A phase of an XA transaction.
    Xa,
    /// It changes rows, or users and the like, but no table's columns or keys.
    Rows,
    /// It may change any table's columns or keys.
    Schema,
}

/// Words with which statements begin that change no columns and no keys. A
/// comment in front or between hides them, which is no harm.
const HARMLESS: [&[&str]; 12] = [
    &["INSERT"],
    &["UPDATE"],
    &["DELETE"],
    &["REPLACE"],
    &["TRUNCATE"],
    &["ANALYZE"],
    &["FLUSH"],
    &["GRANT"],
    &["REVOKE"],
    &["CREATE", "USER"],
    &["CREATE", "TEMPORARY", "TABLE"],
    &["DROP", "TEMPORARY", "TABLE"],
];

const FRAME: [&[&str]; 5] = [
    &["BEGIN"],
    &["COMMIT"],
    &["ROLLBACK"],
    &["SAVEPOINT"],
    &["ROLLBACK", "TO"],
];

pub(crate) fn meaning(text: &[u8]) -> Meaning {
    let words: Vec<&[u8]> = text
        .split(|b| b.is_ascii_whitespace())
        .filter(|word| !word.is_empty())
        .take(4)
        .collect();
    let begins = |with: &[&str]| {
        words.len() >= with.len()
            && words
                .iter()
                .zip(with)
                .all(|(word, with)| word.eq_ignore_ascii_case(with.as_bytes()))
    };
    let frame = |with: &&[&str]| {
        // Alone, or with the name of a savepoint.
        let names = usize::from(matches!(with.last(), Some(&"SAVEPOINT" | &"TO")));
        begins(with) && words.len() == with.len() + names
    };
    if FRAME.iter().any(frame) {
        return Meaning::Frame;
    }
    if begins(&["XA"]) {
        return Meaning::Xa;
    }
    match HARMLESS.iter().any(|with| begins(with)) {
        true => Meaning::Rows,
        false => Meaning::Schema,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statements() {
        for (text, expected) in [
            ("BEGIN", Meaning::Frame),
            ("begin", Meaning::Frame),
            ("COMMIT", Meaning::Frame),
            ("SAVEPOINT `a`", Meaning::Frame),
            ("ROLLBACK TO `a`", Meaning::Frame),
            ("ROLLBACK", Meaning::Frame),
            ("SAVEPOINT a b", Meaning::Schema),
            ("BEGIN NOT ATOMIC drop table t; END", Meaning::Schema),
            ("XA START X'31',X'',1", Meaning::Xa),
            ("insert into t values (1)", Meaning::Rows),
            ("TRUNCATE TABLE t", Meaning::Rows),
            ("truncate\tt", Meaning::Rows),
            ("CREATE TEMPORARY TABLE a(a int)", Meaning::Rows),
            ("CREATE TABLE a(a int)", Meaning::Schema),
            ("/*!40000 ALTER TABLE t DISABLE KEYS */", Meaning::Schema),
            ("DROP /*!40005 TEMPORARY */ TABLE a", Meaning::Schema),
            ("ALTER TABLE t ADD b INT", Meaning::Schema),
            ("RENAME TABLE a TO b", Meaning::Schema),
            ("INSERTED", Meaning::Schema),
            ("", Meaning::Schema),
        ] {
            assert_eq!(meaning(text.as_bytes()), expected, "{text}");
        }
    }
}
