//! Membership views and the C buffers they are handed over in.

use crate::abi;
use crate::types::{Gtid, Seqno, Uuid};

/// What kind of component a view describes.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ViewStatus {
    /// The component that may order write sets.
    Primary = 0,
    /// Any other component; also the final view of a connection.
    NonPrimary = 1,
    /// Not connected.
    Disconnected = 2,
}

/// A member as other nodes see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberInfo {
    /// One incarnation of one process.
    pub id: Uuid,
    /// Node name; at most 31 bytes reach the server.
    pub name: String,
    /// Where clients reach it; at most 255 bytes reach the server.
    pub incoming: String,
}

/// A membership event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    /// The history and the view's own seqno (non-primary: the last ordered one).
    pub state_id: Gtid,
    /// View counter; -1 for non-primary and final views.
    pub view: Seqno,
    /// Kind of component.
    pub status: ViewStatus,
    /// Capabilities common to all members.
    pub capabilities: u32,
    /// Own place in `members`; `None` (C: -1) while catching up and in the final view.
    pub own_index: Option<usize>,
    /// The members, in the same order on every node.
    pub members: Vec<MemberInfo>,
    /// Application protocol version all members speak (4).
    pub proto_ver: i32,
}

impl View {
    /// The view that ends a connection: no members, not primary.
    pub fn last(state_id: Gtid, capabilities: u32, proto_ver: i32) -> View {
        View {
            state_id,
            view: -1,
            status: ViewStatus::NonPrimary,
            capabilities,
            own_index: None,
            members: Vec::new(),
            proto_ver,
        }
    }
}

/// A `wsrep_view_info_t` with its members behind it, in memory of the right alignment.
pub(crate) struct ViewBuffer {
    // u64 words: the C structure is aligned to 8 bytes.
    words: Vec<u64>,
}

impl ViewBuffer {
    pub(crate) fn new(view: &View) -> ViewBuffer {
        let members = view.members.len();
        // The C declaration has one member in it: never less memory than that,
        // so that a reader of the whole structure stays inside.
        let bytes = abi::VIEW_HEADER_BYTES + members.max(1) * size_of::<abi::wsrep_member_info_t>();
        let mut words = vec![0_u64; bytes.div_ceil(8)];
        let head = words.as_mut_ptr().cast::<abi::wsrep_view_info_t>();
        let own_index = match view.own_index {
            Some(index) if index < members => i32::try_from(index).unwrap_or(-1),
            _ => -1,
        };
        // SAFETY: `words` is aligned to 8 bytes and spans the header and all members;
        // every field is written through raw places, no reference to the whole is made.
        unsafe {
            (&raw mut (*head).state_id).write(view.state_id);
            (&raw mut (*head).view).write(view.view);
            (&raw mut (*head).status).write(view.status as u32);
            (&raw mut (*head).capabilities).write(view.capabilities);
            (&raw mut (*head).my_idx).write(own_index);
            (&raw mut (*head).memb_num).write(i32::try_from(members).unwrap_or(i32::MAX));
            (&raw mut (*head).proto_ver).write(view.proto_ver);
            let first = (&raw mut (*head).members).cast::<abi::wsrep_member_info_t>();
            for (i, member) in view.members.iter().enumerate() {
                first.add(i).write(member_to_c(member));
            }
        }
        ViewBuffer { words }
    }

    pub(crate) fn as_ptr(&self) -> *const abi::wsrep_view_info_t {
        self.words.as_ptr().cast()
    }
}

fn member_to_c(member: &MemberInfo) -> abi::wsrep_member_info_t {
    abi::wsrep_member_info_t {
        id: member.id,
        name: fixed(&member.name),
        incoming: fixed(&member.incoming),
    }
}

/// Text in a zero-filled field of `N` bytes, cut at a character so that a NUL remains.
fn fixed<const N: usize>(text: &str) -> [u8; N] {
    let mut field = [0; N];
    let mut end = text.find('\0').unwrap_or(text.len()).min(N - 1);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    field[..end].copy_from_slice(&text.as_bytes()[..end]);
    field
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_cut_at_a_character_and_terminated() {
        assert_eq!(&fixed::<8>("ab"), b"ab\0\0\0\0\0\0");
        assert_eq!(&fixed::<8>("abcdefghij"), b"abcdefg\0");
        assert_eq!(&fixed::<8>("abcdef\u{e4}"), b"abcdef\0\0");
        assert_eq!(&fixed::<8>("ab\0cd"), b"ab\0\0\0\0\0\0");
    }

    #[test]
    fn a_view_without_members_still_spans_the_declared_structure() {
        let buffer = ViewBuffer::new(&View::last(Gtid::UNDEFINED, 0, 4));
        assert_eq!(buffer.words.len() * 8, size_of::<abi::wsrep_view_info_t>());
    }

    #[test]
    fn an_own_index_outside_the_members_is_sent_as_none() {
        let mut view = View::last(Gtid::UNDEFINED, 0, 4);
        view.own_index = Some(0);
        let buffer = ViewBuffer::new(&view);
        // SAFETY: the buffer holds a full header.
        let my_idx = unsafe { (&raw const (*buffer.as_ptr()).my_idx).read() };
        assert_eq!(my_idx, -1);
    }
}
