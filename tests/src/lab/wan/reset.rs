//! A TCP packet (IPv4, RFC 9293) made into one that ends its connection at once.

const TCP: u8 = 6;
const RST: u8 = 4;
const ACK: u8 = 16;

/// What the receiver of this packet must get to drop the connection; `None`: it is not of TCP, or
/// no packet.
///
/// The receiver takes it if nothing is missing before it (RFC 5961): pure acknowledgements are
/// always taken, so whoever sends most is told first, and tells the other one itself.
pub fn reset(packet: &[u8]) -> Option<Vec<u8>> {
    let head = usize::from(packet.first()? & 15) * 4;
    if packet[0] >> 4 != 4 || head < 20 || *packet.get(9)? != TCP || packet.len() < head + 20 {
        return None;
    }
    let mut ip = packet[..20].to_vec();
    ip[0] = 0x45;
    ip[2..4].copy_from_slice(&40u16.to_be_bytes());
    ip[10..12].fill(0);
    let sum = checksum(&[&ip]);
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    let mut tcp = packet[head..head + 20].to_vec();
    tcp[12] = 5 << 4;
    tcp[13] = RST | ACK;
    tcp[14..20].fill(0);
    let mut pseudo = ip[12..20].to_vec();
    pseudo.extend_from_slice(&[0, TCP, 0, 20]);
    let sum = checksum(&[&pseudo, &tcp]);
    tcp[16..18].copy_from_slice(&sum.to_be_bytes());
    ip.append(&mut tcp);
    Some(ip)
}

/// Of the internet (RFC 1071). All parts have an even length.
fn checksum(parts: &[&[u8]]) -> u16 {
    let words = parts.iter().flat_map(|p| p.chunks_exact(2));
    let mut sum: u32 = words
        .map(|w| u32::from(u16::from_be_bytes([w[0], w[1]])))
        .sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// As captured: an acknowledgement with a time stamp.
    const ACKNOWLEDGES: [u8; 52] = [
        0x45, 0, 0, 52, 0x1c, 0x46, 0x40, 0, 0x40, 6, 0, 0, 10, 78, 0, 2, 10, 78, 0, 1, 0x9c, 0x40,
        0x0c, 0xea, 1, 2, 3, 4, 5, 6, 7, 8, 0x80, 0x10, 1, 0xf5, 0, 0, 0, 0, 1, 1, 8, 10, 9, 9, 9,
        9, 8, 8, 8, 8,
    ];

    #[test]
    fn keeps_who_and_where() {
        let made = reset(&ACKNOWLEDGES).expect("TCP");
        assert_eq!(made.len(), 40);
        assert_eq!(made[2..4], [0, 40]);
        assert_eq!(made[12..20], ACKNOWLEDGES[12..20]);
        assert_eq!(made[20..32], ACKNOWLEDGES[20..32], "ports, seq, ack");
        assert_eq!(made[32..34], [0x50, 0x14]);
        // A sum over all of it, its own checksum included, is nothing.
        assert_eq!(checksum(&[&made[..20]]), 0);
        let pseudo = [10, 78, 0, 2, 10, 78, 0, 1, 0, 6, 0, 20];
        assert_eq!(checksum(&[&pseudo, &made[20..]]), 0);
    }

    #[test]
    fn leaves_others_alone() {
        let mut udp = ACKNOWLEDGES;
        udp[9] = 17;
        assert_eq!(reset(&udp), None);
        let mut v6 = ACKNOWLEDGES;
        v6[0] = 0x60;
        assert_eq!(reset(&v6), None);
        assert_eq!(reset(&ACKNOWLEDGES[..39]), None);
        assert_eq!(reset(&[]), None);
    }

    proptest! {
        #[test]
        fn anything(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            if let Some(made) = reset(&bytes) {
                prop_assert_eq!(made.len(), 40);
            }
        }
    }
}
