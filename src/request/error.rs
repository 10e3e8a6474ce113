//! Why annotations are no request, in the words that a pod's owner reads in its event.

use std::fmt::Write as _;

use super::is_unprintable;
use super::quantity::QuantityError;

/// An annotation cannot be understood. The container that it reaches does not start: what its owner
/// meant is not known, and starting without it would go unnoticed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// Our suffix behind a word that is no key.
    #[error("{annotation}: there is no such key; {hint}")]
    UnknownKey {
        /// The annotation's key as typed.
        annotation: String,
        /// What was meant, or what there is.
        hint: String,
    },
    /// What stands behind the key's `/` is neither `pod` nor `container.NAME`.
    #[error("{annotation}: {scope:?} is no scope; {hint}")]
    UnknownScope {
        /// The annotation's key as typed.
        annotation: String,
        /// The part behind `/`.
        scope: String,
        /// What was meant.
        hint: String,
    },
    /// The value does not parse.
    #[error("{annotation}: {}{problem}", lead(.value, .problem))]
    Value {
        /// The annotation's key as typed.
        annotation: String,
        /// The value as typed, shortened.
        value: String,
        /// What is wrong with it.
        problem: Problem,
    },
    /// A key that changes what devices come with, on a container without any.
    #[error(
        "{annotation}: container {container:?} has no adapters for it to apply to: add {devices}, \
         or write {key}/container.NAME for the container that has them"
    )]
    NothingToApplyTo {
        /// The annotation's key as typed.
        annotation: String,
        /// The container.
        container: String,
        /// The key alone.
        key: String,
        /// The annotation that would give it some.
        devices: String,
    },
    /// The key by which we mark what we have given.
    #[error("{annotation}: this key is ours to set on a container; take it off the pod")]
    Reserved {
        /// The annotation's key as typed.
        annotation: String,
    },
}

/// What is wrong with a value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// There is nothing.
    #[error("empty value; expected {0}")]
    Empty(&'static str),
    /// A comma with nothing beside it.
    #[error("empty selector beside a comma; expected {0}")]
    EmptyItem(&'static str),
    /// Not one of the words that there are.
    #[error("{word:?} is none of {known}{}", did_you_mean(.meant.as_deref()))]
    Word {
        /// The word.
        word: String,
        /// Those that there are.
        known: String,
        /// The one that was meant.
        meant: Option<String>,
    },
    /// A word that makes no sense beside others.
    #[error("{0:?} stands alone, not in a list")]
    Alone(String),
    /// A selector that does not parse.
    #[error("{item:?} is no selector: {reason}")]
    Selector {
        /// The selector.
        item: String,
        /// What is wrong with it.
        reason: String,
    },
    /// An address that does not parse.
    #[error("{item:?} is no address for an adapter: {reason}")]
    Address {
        /// What was typed.
        item: String,
        /// What is wrong with it.
        reason: String,
    },
    /// No number where one belongs, or one that is out of range.
    #[error("{text:?} is no number from {from} to {to}")]
    Number {
        /// The text.
        text: String,
        /// Smallest.
        from: u32,
        /// Largest.
        to: u32,
    },
    /// No amount of memory.
    #[error("{0}")]
    Quantity(#[from] QuantityError),
    /// More than anybody means.
    #[error("it is too long: at most {0} are read")]
    TooLong(&'static str),
    /// The same thing twice.
    #[error("{0:?} is given twice")]
    Twice(String),
    /// A vendor's value that is not in the vendor's form.
    #[error("{0}")]
    Dialect(&'static str),
}

/// The value, unless the problem begins with it anyway.
fn lead(value: &str, problem: &Problem) -> String {
    let value = format!("{value:?}");
    if problem.to_string().starts_with(&value) { String::new() } else { value + ": " }
}

fn did_you_mean(meant: Option<&str>) -> String {
    meant.map(|word| format!("; did you mean {word:?}?")).unwrap_or_default()
}

/// Tenant's text for a message: shortened, and without what would break the line or the terminal.
pub(super) fn shown(text: &str) -> String {
    const MOST: usize = 120;
    let mut shown = String::with_capacity(text.len().min(MOST + 4));
    for (at, letter) in text.chars().enumerate() {
        if at == MOST {
            shown.push('…');
            break;
        }
        if is_unprintable(letter) {
            // Writing to a String does not fail.
            let _ = write!(shown, "{}", letter.escape_default());
        } else {
            shown.push(letter);
        }
    }
    shown
}
