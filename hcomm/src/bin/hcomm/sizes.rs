//! Sizes on the command line: `8K`, `64M`, and the rows between two of them.

/// Reads a number of bytes with an optional suffix K, M or G (powers of 1024).
pub(crate) fn parse_bytes(text: &str) -> Result<u64, String> {
    let (digits, factor) = match text.char_indices().next_back() {
        Some((at, 'k' | 'K')) => (&text[..at], 1u64 << 10),
        Some((at, 'm' | 'M')) => (&text[..at], 1 << 20),
        Some((at, 'g' | 'G')) => (&text[..at], 1 << 30),
        _ => (text, 1),
    };
    let number: u64 = digits
        .parse()
        .map_err(|_| format!("`{text}` is no size; write 4096, 8K, 64M or 1G"))?;
    number
        .checked_mul(factor)
        .ok_or_else(|| format!("`{text}` does not fit in 64 bits"))
}

/// How sizes grow from row to row.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Growth {
    /// By this factor, at least 2.
    Factor(u64),
    /// By this many bytes, at least 1.
    Step(u64),
}

/// All sizes from `begin` to `end`, both included where they are hit.
pub(crate) fn rows(begin: u64, end: u64, growth: Growth) -> Vec<u64> {
    let mut sizes = Vec::new();
    let mut next = Some(begin);
    while let Some(size) = next.filter(|&size| size <= end) {
        sizes.push(size);
        next = match growth {
            // Zero times anything stays zero: go on from one byte.
            Growth::Factor(_) if size == 0 => Some(1),
            Growth::Factor(factor) => size.checked_mul(factor),
            Growth::Step(step) => size.checked_add(step),
        };
    }
    sizes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suffixes_are_powers_of_1024() {
        assert_eq!(parse_bytes("0"), Ok(0));
        assert_eq!(parse_bytes("8K"), Ok(8192));
        assert_eq!(parse_bytes("3m"), Ok(3 << 20));
        assert_eq!(parse_bytes("1G"), Ok(1 << 30));
        for bad in ["", "K", "-1", "1.5M", "8KB", "99999999999G"] {
            assert!(parse_bytes(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn rows_end_at_the_end() {
        assert_eq!(rows(8, 64, Growth::Factor(2)), [8, 16, 32, 64]);
        assert_eq!(rows(0, 3, Growth::Factor(2)), [0, 1, 2]);
        assert_eq!(rows(10, 30, Growth::Step(10)), [10, 20, 30]);
        assert_eq!(rows(1, u64::MAX, Growth::Factor(1 << 40)).len(), 2);
        assert!(rows(9, 8, Growth::Step(1)).is_empty());
    }
}
