//! An error that has forgotten its type: what remains is a text, the chain of
//! its causes and, where known, the name of the type it came from.
//!
//! Stand-in for the crate of the same name, whose licence we cannot link; it
//! was written from openraft's use of it alone and covers only that.

use std::error::Error;
use std::fmt;

/// The text of an error and of its causes. Cheap enough to clone and compare.
#[derive(Clone, PartialEq, Eq)]
pub struct AnyError {
    type_name: Option<String>,
    text: String,
    cause: Option<Box<AnyError>>,
}

impl AnyError {
    /// Keeps the text and causes of `error`, and the name of its type.
    pub fn new<E: Error + 'static>(error: &E) -> Self {
        Self::from_dyn(error, Some(std::any::type_name::<E>().to_owned()))
    }

    /// The same for an error whose type is known to the caller only by name.
    pub fn from_dyn(error: &(dyn Error + 'static), type_name: Option<String>) -> Self {
        AnyError {
            type_name,
            text: error.to_string(),
            cause: error.source().map(|c| Box::new(Self::from_dyn(c, None))),
        }
    }

    /// An error that is nothing but a text.
    pub fn error(text: impl ToString) -> Self {
        AnyError {
            type_name: None,
            text: text.to_string(),
            cause: None,
        }
    }

    /// The name of the type this came from.
    pub fn get_type(&self) -> Option<&str> {
        self.type_name.as_deref()
    }

    /// Always `None`: no backtraces are taken.
    pub fn backtrace(&self) -> Option<&str> {
        None
    }
}

/// Always `None`: no backtraces are taken.
pub fn backtrace_str() -> Option<String> {
    None
}

impl fmt::Display for AnyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(name) = &self.type_name {
            write!(f, "{name}: ")?;
        }
        f.write_str(&self.text)?;
        if let Some(cause) = &self.cause {
            write!(f, "; because: {cause}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for AnyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Error for AnyError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.cause.as_deref().map(|c| c as &(dyn Error + 'static))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_text_type_and_causes() {
        let e = AnyError::new(&std::io::Error::other(AnyError::error("inner")));
        assert!(e.get_type().is_some_and(|t| t.ends_with("Error")));
        assert!(e.to_string().contains("inner"));
        assert_eq!(e.clone(), e);
    }
}
