//! Write-set flags, as the server's interface numbers them.

use std::fmt;
use std::ops::{BitOr, BitOrAssign};

/// The flag bits of a write set (contract A.3), carried verbatim.
///
/// A bit without a name here is kept: the server counts every extra or missing
/// bit on a fragment as an error of ours.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Flags(u32);

impl Flags {
    /// No flag: a middle fragment of a streaming transaction.
    pub const NONE: Flags = Flags(0);
    /// The transaction ends with this write set.
    pub const TRX_END: Flags = Flags(1 << 0);
    /// The transaction is to be rolled back.
    pub const ROLLBACK: Flags = Flags(1 << 1);
    /// Total order isolation: DDL and its like.
    pub const ISOLATION: Flags = Flags(1 << 2);
    /// May not be applied beside any earlier write set.
    pub const PA_UNSAFE: Flags = Flags(1 << 3);
    /// Commutes with everything; not used by the server.
    pub const COMMUTATIVE: Flags = Flags(1 << 4);
    /// The payload is in the server's own format; not used by the server.
    pub const NATIVE: Flags = Flags(1 << 5);
    /// The transaction starts with this write set.
    pub const TRX_START: Flags = Flags(1 << 6);
    /// The fragment prepares the transaction.
    pub const TRX_PREPARE: Flags = Flags(1 << 7);
    /// Takes a snapshot; not used by the server.
    pub const SNAPSHOT: Flags = Flags(1 << 8);
    /// Depends on everything its origin had seen.
    pub const IMPLICIT_DEPS: Flags = Flags(1 << 9);

    const NAMES: [(Flags, &'static str); 10] = [
        (Flags::TRX_START, "TRX_START"),
        (Flags::TRX_END, "TRX_END"),
        (Flags::ROLLBACK, "ROLLBACK"),
        (Flags::ISOLATION, "ISOLATION"),
        (Flags::PA_UNSAFE, "PA_UNSAFE"),
        (Flags::COMMUTATIVE, "COMMUTATIVE"),
        (Flags::NATIVE, "NATIVE"),
        (Flags::TRX_PREPARE, "TRX_PREPARE"),
        (Flags::SNAPSHOT, "SNAPSHOT"),
        (Flags::IMPLICIT_DEPS, "IMPLICIT_DEPS"),
    ];

    /// The flags with exactly these bits.
    pub const fn from_bits(bits: u32) -> Flags {
        Flags(bits)
    }

    /// The bits, as the server's interface numbers them.
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// Whether every flag of `other` is set here.
    pub const fn contains(self, other: Flags) -> bool {
        self.0 & other.0 == other.0
    }

    /// These flags without those of `other`.
    pub const fn without(self, other: Flags) -> Flags {
        Flags(self.0 & !other.0)
    }

    /// Whether the transaction starts here: the first fragment, or all of it.
    pub const fn starts(self) -> bool {
        self.contains(Flags::TRX_START)
    }

    /// Whether the transaction ends here: the last fragment, or all of it.
    pub const fn ends(self) -> bool {
        self.contains(Flags::TRX_END)
    }

    /// Whether this is an event in total order isolation.
    pub const fn is_toi(self) -> bool {
        self.contains(Flags::ISOLATION)
    }

    /// Whether this rolls a streaming transaction back.
    pub const fn is_rollback(self) -> bool {
        self.contains(Flags::ROLLBACK)
    }

    /// Whether no earlier write set may be applied beside it.
    pub const fn pa_unsafe(self) -> bool {
        self.contains(Flags::PA_UNSAFE)
    }

    /// Whether it depends on everything its origin had seen.
    pub const fn implicit_deps(self) -> bool {
        self.contains(Flags::IMPLICIT_DEPS)
    }

    /// Whether this is a part of a streaming transaction that carries work:
    /// not the whole transaction, not its rollback, not isolated.
    pub const fn is_fragment(self) -> bool {
        let whole = self.starts() && self.ends();
        !(whole || self.is_toi() || self.is_rollback())
    }

    /// Whether this is a fragment after the first one of its transaction.
    pub const fn is_followup_fragment(self) -> bool {
        self.is_fragment() && !self.starts()
    }
}

impl BitOr for Flags {
    type Output = Flags;

    fn bitor(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }
}

impl BitOrAssign for Flags {
    fn bitor_assign(&mut self, other: Flags) {
        self.0 |= other.0;
    }
}

impl fmt::Display for Flags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = *self;
        let mut first = true;
        for (flag, name) in Flags::NAMES {
            if rest.contains(flag) {
                rest = rest.without(flag);
                f.write_str(if first { "" } else { "|" })?;
                f.write_str(name)?;
                first = false;
            }
        }
        match (first, rest.bits()) {
            (true, 0) => f.write_str("none"),
            (_, 0) => Ok(()),
            (true, bits) => write!(f, "{bits:#x}"),
            (false, bits) => write!(f, "|{bits:#x}"),
        }
    }
}

impl fmt::Debug for Flags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_those_of_the_interface() {
        let all = Flags::NAMES.iter().fold(Flags::NONE, |a, (f, _)| a | *f);
        assert_eq!(all.bits(), 0x3ff);
        assert_eq!((Flags::TRX_START | Flags::TRX_END).bits(), 0x41);
        assert_eq!((Flags::ROLLBACK | Flags::PA_UNSAFE).bits(), 0x0a);
        assert_eq!(
            Flags::from_bits(0x204),
            Flags::ISOLATION | Flags::IMPLICIT_DEPS
        );
    }

    /// The recorded combinations of contract A.3.
    #[test]
    fn recorded_combinations() {
        let plain = Flags::TRX_START | Flags::TRX_END;
        assert!(!plain.is_fragment() && !plain.is_followup_fragment());
        assert!(!(plain | Flags::PA_UNSAFE).is_fragment());
        assert!(Flags::TRX_START.is_fragment() && !Flags::TRX_START.is_followup_fragment());
        assert!(Flags::NONE.is_followup_fragment());
        let last = Flags::TRX_END | Flags::PA_UNSAFE;
        assert!(last.is_followup_fragment() && last.ends() && last.pa_unsafe());
        let rollback = Flags::ROLLBACK | Flags::PA_UNSAFE;
        assert!(rollback.is_rollback() && !rollback.is_fragment());
        let toi = plain | Flags::ISOLATION;
        assert!(toi.is_toi() && !toi.is_fragment());
    }

    #[test]
    fn text_names_every_bit() {
        assert_eq!(Flags::NONE.to_string(), "none");
        assert_eq!(
            (Flags::TRX_END | Flags::TRX_START).to_string(),
            "TRX_START|TRX_END"
        );
        assert_eq!(Flags::from_bits(0x1001).to_string(), "TRX_END|0x1000");
        assert_eq!(Flags::from_bits(0x1000).to_string(), "0x1000");
    }
}
