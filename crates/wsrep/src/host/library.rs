//! A provider's library: loaded, looked through, and started with `init`.

use std::ffi::{CStr, c_char, c_int};
use std::mem::{ManuallyDrop, MaybeUninit, offset_of};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};

use libloading::os::unix::{Library as Object, RTLD_LOCAL, RTLD_NOW};

use super::callbacks::LOGGER;
use super::{Events, Host, HostError, Inner, NodeConfig, lock};
use crate::abi::{INTERFACE_VERSION, wsrep_t};

/// The type of `wsrep_loader`: it fills the table and returns 0 or an `errno` value.
pub type Loader = unsafe extern "C" fn(*mut wsrep_t) -> c_int;

/// Bytes of a field of the table; all are pointers.
const FIELD_BYTES: usize = size_of::<usize>();
/// The fields that must not be NULL: all but `dlh`, which is the server's, and `ctx`.
const REQUIRED_FIELDS: usize = offset_of!(wsrep_t, free) / FIELD_BYTES + 1;

/// How a provider names itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct About {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
    /// Who made it.
    pub vendor: String,
}

/// A provider's library in this process.
///
/// [`Library::init`] makes a [`Host`] of it. One that is dropped instead stays
/// in memory: its loader has run, and only a freed provider may be unloaded.
#[derive(Debug)]
pub struct Library {
    /// A leaked box: all required fields are filled.
    table: *mut wsrep_t,
    object: ManuallyDrop<Option<Object>>,
    about: About,
}

// SAFETY: the table is owned, and the interface binds a provider to no thread.
unsafe impl Send for Library {}

impl Library {
    /// Loads the library as the server does: all its symbols at once and for itself alone,
    /// then its function `wsrep_loader`. A path without a slash is searched for where the
    /// system keeps libraries.
    ///
    /// This runs the code of the library. By naming it **the caller vouches that it is a
    /// provider which keeps to the interface**; see
    /// [the module](super#what-is-sound-and-what-the-caller-vouches-for).
    ///
    /// # Errors
    ///
    /// [`HostError::Load`] and [`HostError::NoLoader`], after which nothing stays in memory;
    /// [`HostError::Loader`], [`HostError::MissingField`] and [`HostError::Version`], after
    /// which the library does, because its loader has run.
    pub fn load(path: &Path) -> Result<Library, HostError> {
        // SAFETY: the caller vouches for the library's initialisers.
        let object =
            unsafe { Object::open(Some(path), RTLD_NOW | RTLD_LOCAL) }.map_err(|source| {
                HostError::Load {
                    path: path.to_owned(),
                    source,
                }
            })?;
        // SAFETY: the function has this type in every provider; a symbol may be NULL, which
        // is `None` here.
        let loader = unsafe { object.get::<Option<Loader>>(b"wsrep_loader\0") };
        let Some(loader) = loader.ok().and_then(|symbol| *symbol) else {
            return Err(HostError::NoLoader {
                path: path.to_owned(),
            });
        };
        // SAFETY: the caller vouches for it, and the object stays with the table.
        unsafe { Library::fill(path, Some(object), loader) }
    }

    /// A provider that is linked into this program, by its `wsrep_loader`.
    ///
    /// # Errors
    ///
    /// [`HostError::Loader`], [`HostError::MissingField`] or [`HostError::Version`].
    ///
    /// # Safety
    ///
    /// The function is the loader of a provider that keeps to the interface, version 26:
    /// it fills the table with functions of the interface's types and with strings that stay
    /// where they are, or leaves fields NULL, or returns an error.
    pub unsafe fn linked(loader: Loader) -> Result<Library, HostError> {
        // SAFETY: the caller's promise.
        unsafe { Library::fill(Path::new("linked into this program"), None, loader) }
    }

    /// Has the table filled, and looks through it.
    ///
    /// # Safety
    ///
    /// As for [`linked`](Library::linked); the object, if there is one, holds the loader.
    unsafe fn fill(
        path: &Path,
        object: Option<Object>,
        loader: Loader,
    ) -> Result<Library, HostError> {
        // The provider may keep the address and have threads, so both stay, whatever follows.
        let object = ManuallyDrop::new(object);
        let table = Box::into_raw(Box::new(MaybeUninit::<wsrep_t>::zeroed())).cast::<wsrep_t>();
        // SAFETY: the table is writable and as large as the interface says.
        let code = unsafe { loader(table) };
        let path = || -> PathBuf { path.to_owned() };
        if code != 0 {
            return Err(HostError::Loader { path: path(), code });
        }
        for field in 0..REQUIRED_FIELDS {
            // SAFETY: the table was zeroed, and all fields up to there are as large as a word.
            let word = unsafe { table.cast::<usize>().add(field).read() };
            if word == 0 {
                return Err(HostError::MissingField {
                    path: path(),
                    offset: field * FIELD_BYTES,
                });
            }
        }
        // SAFETY: the strings are not NULL (checked), and are the provider's constants.
        let (version, about) = unsafe {
            (
                text((*table).version),
                About {
                    name: text((*table).provider_name),
                    version: text((*table).provider_version),
                    vendor: text((*table).provider_vendor),
                },
            )
        };
        if version.as_bytes() != INTERFACE_VERSION.to_bytes() {
            return Err(HostError::Version {
                path: path(),
                found: version,
            });
        }
        Ok(Library {
            table,
            object,
            about,
        })
    }

    /// How the provider names itself.
    pub fn about(&self) -> &About {
        &self.about
    }

    /// Hands the provider its configuration and the callbacks, with which it tells `events`
    /// what happens, from now on.
    ///
    /// # Errors
    ///
    /// [`HostError::Busy`] if this process has a host that is not closed,
    /// [`HostError::ZeroByte`] if the configuration has one, [`HostError::Call`] if the
    /// provider refuses; [`Events::log`] has had its reasons then. In each case the library
    /// stays in memory, unused.
    pub fn init(self, config: &NodeConfig, events: Arc<dyn Events>) -> Result<Host, HostError> {
        let mut logger = lock(&LOGGER);
        if logger.is_some() {
            return Err(HostError::Busy);
        }
        *logger = Some(Arc::clone(&events));
        drop(logger);
        let Library {
            table,
            object,
            about,
        } = self;
        let inner = Arc::new_cyclic(|me| Inner {
            table,
            object,
            events,
            transfer_file: config.data_dir.join("state-transfer"),
            transfers: Mutex::new(Some(Vec::new())),
            next_trx: AtomicU64::new(1),
            me: me.clone(),
        });
        match inner.init(config) {
            Ok(()) => Ok(Host { inner, about }),
            Err(error) => {
                // Whatever the provider has begun may go on: `inner` stays, see `Inner::init`.
                *lock(&LOGGER) = None;
                Err(error)
            }
        }
    }
}

/// A copy of a C string; what is no UTF-8 is replaced.
///
/// # Safety
/// The pointer is not null and the string ends with a zero byte.
pub(super) unsafe fn text(string: *const c_char) -> String {
    // SAFETY: the caller's promise.
    unsafe { CStr::from_ptr(string) }
        .to_string_lossy()
        .into_owned()
}
