//! Enough of Rust's tokens to tell code from comments and literals.

/// A word of code: an identifier or a keyword.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Word<'a> {
    pub(crate) text: &'a str,
    /// Counted from 1.
    pub(crate) line: usize,
    /// The first character after it that is not blank.
    pub(crate) next: Option<char>,
}

/// The words of `code`, which [`code_only`] has made.
pub(crate) fn words(code: &str) -> Vec<Word<'_>> {
    let mut words = Vec::new();
    for (number, line) in code.lines().enumerate() {
        let mut rest = line;
        while let Some(start) = rest.find(is_word) {
            let tail = &rest[start..];
            let end = tail.find(|c| !is_word(c)).unwrap_or(tail.len());
            rest = &tail[end..];
            words.push(Word {
                text: &tail[..end],
                line: number + 1,
                next: rest.trim_start().chars().next(),
            });
        }
    }
    words
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// The text with everything inside comments, strings and characters blanked out. Lines stay where
/// they are.
pub(crate) fn code_only(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    while at < chars.len() {
        let end = literal_or_comment(&chars, at);
        if end == at {
            out.push(chars[at]);
            at += 1;
        } else {
            let blank = |c: &char| if *c == '\n' { '\n' } else { ' ' };
            out.extend(chars[at..end].iter().map(blank));
            at = end;
        }
    }
    out
}

/// Where the comment or literal that begins at `at` ends; `at` if none begins there.
fn literal_or_comment(chars: &[char], at: usize) -> usize {
    let peek = |offset: usize| chars.get(at + offset).copied();
    match (chars[at], peek(1)) {
        ('/', Some('/')) => chars[at..]
            .iter()
            .position(|c| *c == '\n')
            .map_or(chars.len(), |length| at + length),
        ('/', Some('*')) => block_comment(chars, at),
        ('"', _) => string(chars, at + 1),
        ('\'', _) => character(chars, at),
        ('r', _) if !continues_word(chars, at) => raw_string(chars, at),
        _ => at,
    }
}

/// Block comments nest.
fn block_comment(chars: &[char], at: usize) -> usize {
    let (mut end, mut depth) = (at, 0_usize);
    while end < chars.len() {
        match (chars[end], chars.get(end + 1)) {
            ('/', Some('*')) => {
                depth += 1;
                end += 2;
            }
            ('*', Some('/')) => {
                depth -= 1;
                end += 2;
                if depth == 0 {
                    return end;
                }
            }
            _ => end += 1,
        }
    }
    chars.len()
}

fn string(chars: &[char], mut end: usize) -> usize {
    while end < chars.len() {
        match chars[end] {
            '\\' => end += 2,
            '"' => return end + 1,
            _ => end += 1,
        }
    }
    chars.len()
}

/// A character has a second quote; a lifetime or label has none.
fn character(chars: &[char], at: usize) -> usize {
    match (chars.get(at + 1), chars.get(at + 2)) {
        (Some('\\'), Some(_)) => chars[at + 3..]
            .iter()
            .position(|c| *c == '\'')
            .map_or(chars.len(), |length| at + 3 + length + 1),
        (Some(_), Some('\'')) => at + 3,
        _ => at,
    }
}

/// `r"…"` and `r#"…"#`; a raw identifier such as `r#type` is none.
fn raw_string(chars: &[char], at: usize) -> usize {
    let hashes = chars[at + 1..].iter().take_while(|c| **c == '#').count();
    let open = at + 1 + hashes;
    if chars.get(open) != Some(&'"') {
        return at;
    }
    let closes = |end: usize| {
        chars[end] == '"'
            && chars
                .get(end + 1..end + 1 + hashes)
                .is_some_and(|tail| tail.iter().all(|c| *c == '#'))
    };
    (open + 1..chars.len())
        .find(|end| closes(*end))
        .map_or(chars.len(), |end| end + 1 + hashes)
}

/// Whether the `r` at `at` is inside a word. The prefixes of `br"…"` and `cr"…"` are none.
fn continues_word(chars: &[char], at: usize) -> bool {
    let before = |distance: usize| at.checked_sub(distance).map(|index| chars[index]);
    match before(1) {
        Some('b' | 'c') => before(2).is_some_and(is_word),
        other => other.is_some_and(is_word),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(source: &str) -> Vec<String> {
        words(&code_only(source))
            .iter()
            .map(|word| word.text.to_owned())
            .collect()
    }

    #[test]
    fn comments_are_not_code() {
        assert_eq!(texts("a // unsafe\nb"), ["a", "b"]);
        assert_eq!(texts("a /* x /* unsafe */ unsafe */ b"), ["a", "b"]);
        assert_eq!(texts("/// unsafe\n//! unsafe\nfn"), ["fn"]);
        assert_eq!(texts("a /* no end"), ["a"]);
    }

    #[test]
    fn literals_are_not_code() {
        assert_eq!(texts(r#"a "unsafe \" unsafe" b"#), ["a", "b"]);
        assert_eq!(texts(r##"a r#"unsafe " unsafe"# b"##), ["a", "b"]);
        assert_eq!(texts(r#"a br"unsafe\" b"#), ["a", "b", "b"]);
        assert_eq!(texts("a '\"' unsafe '\"' b"), ["a", "unsafe", "b"]);
        assert_eq!(texts(r"a '\'' unsafe '\u{41}' b"), ["a", "unsafe", "b"]);
        assert_eq!(texts("a \"no end"), ["a"]);
    }

    #[test]
    fn lifetimes_and_raw_names_are_code() {
        assert_eq!(
            texts("fn f<'a>(x: &'a str) { unsafe }"),
            ["fn", "f", "a", "x", "a", "str", "unsafe"]
        );
        assert_eq!(texts("r#type unsafe"), ["r", "type", "unsafe"]);
        assert_eq!(texts("for\"x\" unsafe"), ["for", "unsafe"]);
        assert_eq!(texts("unsafe_code"), ["unsafe_code"]);
    }

    #[test]
    fn words_know_their_line_and_what_follows() {
        let code = code_only("\"one\ntwo\"\n  todo !()");
        assert_eq!(
            words(&code),
            [Word {
                text: "todo",
                line: 3,
                next: Some('!')
            }]
        );
    }
}
