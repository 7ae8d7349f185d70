//! JSON whose every value knows its line, so that an error can name the place.
//!
//! The files that others write need it: what is wrong with a rank table is rarely its syntax.
//! Numbers are kept as they are written, since the field writes them as texts as often as not.

use super::SourceError;

/// Values inside values, at most.
const MAX_DEPTH: usize = 64;

/// A value and its line, from 1.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Node {
    line: u32,
    value: Value,
}

#[derive(Clone, Debug, PartialEq)]
enum Value {
    Null,
    Bool(bool),
    Number(Box<str>),
    Text(Box<str>),
    List(Vec<Node>),
    /// In the order of the file.
    Object(Vec<(Box<str>, Node)>),
}

impl Node {
    /// Reads a text.
    ///
    /// # Errors
    /// If it is no JSON, with the line; if a field is there twice.
    pub(crate) fn parse(text: &str) -> Result<Self, SourceError> {
        let mut parser = Parser {
            text,
            at: 0,
            line: 1,
        };
        let root = parser.value(0)?;
        parser.blanks();
        match parser.peek() {
            None => Ok(root),
            Some(_) => Err(parser.refuse("the text goes on behind its end")),
        }
    }
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
    line: u32,
}

impl Parser<'_> {
    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn blanks(&mut self) {
        while let Some(byte @ (b' ' | b'\t' | b'\r' | b'\n')) = self.peek() {
            self.line += u32::from(byte == b'\n');
            self.at += 1;
        }
    }

    /// An error at this place, with what stands there.
    fn refuse(&self, problem: &str) -> SourceError {
        let rest = self.text.get(self.at..).unwrap_or_default();
        let found: String = rest.chars().take_while(|c| *c != '\n').take(20).collect();
        SourceError {
            line: self.line as usize,
            field: String::new(),
            value: if rest.is_empty() {
                "the end".to_owned()
            } else {
                found
            },
            problem: format!("no JSON: {problem}"),
        }
    }

    fn takes(&mut self, byte: u8) -> bool {
        let found = self.peek() == Some(byte);
        self.at += usize::from(found);
        found
    }

    fn value(&mut self, depth: usize) -> Result<Node, SourceError> {
        if depth > MAX_DEPTH {
            return Err(self.refuse("values are nested too deeply"));
        }
        self.blanks();
        let line = self.line;
        let value = match self.peek() {
            Some(b'{') => self.object(depth)?,
            Some(b'[') => self.list(depth)?,
            Some(b'"') => Value::Text(self.string()?),
            Some(b'-' | b'0'..=b'9') => self.number()?,
            _ => self.word()?,
        };
        Ok(Node { line, value })
    }

    fn word(&mut self) -> Result<Value, SourceError> {
        let rest = &self.text.as_bytes()[self.at..];
        for (word, value) in [
            ("true", Value::Bool(true)),
            ("false", Value::Bool(false)),
            ("null", Value::Null),
        ] {
            if rest.starts_with(word.as_bytes()) {
                self.at += word.len();
                return Ok(value);
            }
        }
        Err(self.refuse("a value must begin here"))
    }

    fn number(&mut self) -> Result<Value, SourceError> {
        let start = self.at;
        while let Some(b'-' | b'+' | b'.' | b'e' | b'E' | b'0'..=b'9') = self.peek() {
            self.at += 1;
        }
        let text = &self.text[start..self.at];
        if text.parse::<f64>().is_ok_and(f64::is_finite) {
            Ok(Value::Number(text.into()))
        } else {
            self.at = start;
            Err(self.refuse("this is no number"))
        }
    }

    fn list(&mut self, depth: usize) -> Result<Value, SourceError> {
        self.at += 1;
        let mut items = Vec::new();
        self.blanks();
        if self.takes(b']') {
            return Ok(Value::List(items));
        }
        loop {
            items.push(self.value(depth + 1)?);
            self.blanks();
            if self.takes(b']') {
                return Ok(Value::List(items));
            }
            if !self.takes(b',') {
                return Err(self.refuse("a list goes on with `,` or ends with `]`"));
            }
        }
    }

    fn object(&mut self, depth: usize) -> Result<Value, SourceError> {
        self.at += 1;
        let mut fields: Vec<(Box<str>, Node)> = Vec::new();
        self.blanks();
        if self.takes(b'}') {
            return Ok(Value::Object(fields));
        }
        loop {
            self.blanks();
            if self.peek() != Some(b'"') {
                return Err(self.refuse("a field must have a name in quotes"));
            }
            let start = self.at;
            let name = self.string()?;
            // Few fields an object; an object with thousands is somebody's attack.
            if fields.len() >= 1024 {
                return Err(self.refuse("an object has more than 1,024 fields"));
            }
            if fields.iter().any(|(known, _)| *known == name) {
                self.at = start;
                return Err(self.refuse("a field is there twice"));
            }
            self.blanks();
            if !self.takes(b':') {
                return Err(self.refuse("a field's name is followed by `:`"));
            }
            let value = self.value(depth + 1)?;
            fields.push((name, value));
            self.blanks();
            if self.takes(b'}') {
                return Ok(Value::Object(fields));
            }
            if !self.takes(b',') {
                return Err(self.refuse("an object goes on with `,` or ends with `}`"));
            }
        }
    }

    fn string(&mut self) -> Result<Box<str>, SourceError> {
        let begin = self.at;
        self.at += 1;
        let mut text = String::new();
        loop {
            let plain = self.at;
            while self
                .peek()
                .is_some_and(|b| b != b'"' && b != b'\\' && b >= 0x20)
            {
                self.at += 1;
            }
            text.push_str(&self.text[plain..self.at]);
            match self.peek() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(text.into());
                }
                Some(b'\\') => text.push(self.escape()?),
                _ => {
                    self.at = begin;
                    return Err(self.refuse("a text does not end on its line"));
                }
            }
        }
    }

    fn escape(&mut self) -> Result<char, SourceError> {
        self.at += 1;
        let byte = self.peek();
        self.at += 1;
        Ok(match byte {
            Some(b'n') => '\n',
            Some(b't') => '\t',
            Some(b'r') => '\r',
            Some(b'b') => '\u{8}',
            Some(b'f') => '\u{c}',
            Some(byte @ (b'"' | b'\\' | b'/')) => char::from(byte),
            Some(b'u') => {
                let high = self.hex()?;
                let low = if (0xd800..0xdc00).contains(&high)
                    && self.text[self.at..].starts_with("\\u")
                {
                    self.at += 2;
                    self.hex()?
                } else {
                    0
                };
                let code = match low {
                    0 => high,
                    0xdc00..0xe000 => 0x1_0000 + ((high - 0xd800) << 10) + (low - 0xdc00),
                    _ => 0xdc00,
                };
                // Half a pair stands for nothing.
                char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER)
            }
            _ => {
                self.at -= 2;
                return Err(self.refuse("this stands for no character"));
            }
        })
    }

    fn hex(&mut self) -> Result<u32, SourceError> {
        let digits = self.text.get(self.at..self.at + 4);
        let code = digits
            .filter(|digits| digits.bytes().all(|b| b.is_ascii_hexdigit()))
            .and_then(|digits| u32::from_str_radix(digits, 16).ok());
        let code = code.ok_or_else(|| self.refuse("`\\u` takes four hexadecimal digits"))?;
        self.at += 4;
        Ok(code)
    }
}

/// A value and the way to it, for errors.
#[derive(Clone, Copy)]
pub(crate) struct At<'a> {
    node: &'a Node,
    up: Option<&'a Self>,
    step: Step<'a>,
}

#[derive(Clone, Copy)]
enum Step<'a> {
    Root,
    Field(&'a str),
    Item(usize),
}

impl<'a> At<'a> {
    /// The whole text.
    pub(crate) const fn root(node: &'a Node) -> Self {
        Self {
            node,
            up: None,
            step: Step::Root,
        }
    }

    pub(crate) fn line(&self) -> usize {
        self.node.line as usize
    }

    /// `server_list[0].device[3].rank_id`
    fn path(&self) -> String {
        let up = self.up.map_or_else(String::new, At::path);
        match self.step {
            Step::Root => up,
            Step::Field(name) if up.is_empty() => name.to_owned(),
            Step::Field(name) => format!("{up}.{name}"),
            Step::Item(index) => format!("{up}[{index}]"),
        }
    }

    /// An error about this value.
    pub(crate) fn refuse(&self, problem: impl Into<String>) -> SourceError {
        SourceError {
            line: self.line(),
            field: self.path(),
            value: self.shown(),
            problem: problem.into(),
        }
    }

    /// The value for people, shortened.
    fn shown(&self) -> String {
        let cut = |text: &str| {
            let short: String = text.chars().take(60).collect();
            if short.len() < text.len() {
                short + "…"
            } else {
                short
            }
        };
        match &self.node.value {
            Value::Null => "null".to_owned(),
            Value::Bool(value) => value.to_string(),
            Value::Number(text) => cut(text),
            Value::Text(text) => format!("\"{}\"", cut(text).escape_debug()),
            Value::List(items) => format!("a list of {}", items.len()),
            Value::Object(fields) => format!("an object of {} fields", fields.len()),
        }
    }

    /// A field, if it is there and not null.
    ///
    /// # Errors
    /// If this is no object.
    pub(crate) fn get<'b>(&'b self, name: &'b str) -> Result<Option<At<'b>>, SourceError> {
        let Value::Object(fields) = &self.node.value else {
            return Err(self.refuse(format!("an object with the field `{name}` is expected")));
        };
        let found = fields.iter().find(|(known, _)| **known == *name);
        Ok(found
            .filter(|(_, node)| node.value != Value::Null)
            .map(|(_, node)| At {
                node,
                up: Some(self),
                step: Step::Field(name),
            }))
    }

    /// A field that must be there.
    ///
    /// # Errors
    /// If it is missing.
    pub(crate) fn need<'b>(&'b self, name: &'b str) -> Result<At<'b>, SourceError> {
        self.get(name)?.ok_or_else(|| SourceError {
            line: self.line(),
            field: match self.path() {
                path if path.is_empty() => name.to_owned(),
                path => format!("{path}.{name}"),
            },
            value: "nothing".to_owned(),
            problem: "the field is missing".to_owned(),
        })
    }

    /// The fields, in the order of the file.
    ///
    /// # Errors
    /// If this is no object.
    pub(crate) fn fields(&self) -> Result<impl Iterator<Item = (&str, At<'_>)>, SourceError> {
        let Value::Object(fields) = &self.node.value else {
            return Err(self.refuse("an object is expected"));
        };
        Ok(fields.iter().map(|(name, node)| {
            let at = At {
                node,
                up: Some(self),
                step: Step::Field(name),
            };
            (&**name, at)
        }))
    }

    /// The entries of a list.
    ///
    /// # Errors
    /// If this is no list.
    pub(crate) fn items(&self) -> Result<impl ExactSizeIterator<Item = At<'_>>, SourceError> {
        let Value::List(items) = &self.node.value else {
            return Err(self.refuse("a list is expected"));
        };
        Ok(items.iter().enumerate().map(|(index, node)| At {
            node,
            up: Some(self),
            step: Step::Item(index),
        }))
    }

    /// A text, or a number as it is written.
    ///
    /// # Errors
    /// If this is something else.
    pub(crate) fn text(&self) -> Result<&'a str, SourceError> {
        match &self.node.value {
            Value::Text(text) | Value::Number(text) => Ok(text),
            _ => Err(self.refuse("a text is expected")),
        }
    }

    /// True or false.
    pub(crate) const fn boolean(&self) -> Option<bool> {
        match self.node.value {
            Value::Bool(value) => Some(value),
            _ => None,
        }
    }

    /// A whole number, also in quotes.
    ///
    /// # Errors
    /// If this is something else, or out of the range.
    pub(crate) fn number(&self, range: std::ops::RangeInclusive<u64>) -> Result<u64, SourceError> {
        let (low, high) = (*range.start(), *range.end());
        let number = self.text().ok().and_then(|text| text.trim().parse().ok());
        number
            .filter(|number| range.contains(number))
            .ok_or_else(|| {
                self.refuse(if high == u64::MAX {
                    format!("a whole number from {low} on is expected")
                } else {
                    format!("a whole number from {low} to {high} is expected")
                })
            })
    }

    /// A number with a fraction, also in quotes, times a factor, rounded.
    ///
    /// # Errors
    /// If this is something else, negative, or far too large.
    pub(crate) fn scaled(&self, factor: f64) -> Result<u64, SourceError> {
        let number: Option<f64> = self.text().ok().and_then(|text| text.trim().parse().ok());
        let scaled = number.map(|number| number * factor);
        match scaled.filter(|scaled| (0.0..=1e18).contains(scaled)) {
            Some(scaled) => Ok(scaled.round() as u64),
            None => Err(self.refuse("a number from 0 on is expected")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_know_their_lines_and_paths() {
        let text = "{\n \"a\": [1,\n  {\"b\": \"x\\u0041\\n\"}],\n \"c\": -1.5e3, \"d\": null}\n";
        let node = Node::parse(text).unwrap();
        let root = At::root(&node);
        let a = root.need("a").unwrap();
        let items: Vec<_> = a.items().unwrap().collect();
        assert_eq!(items[0].number(0..=9), Ok(1));
        let b = items[1].need("b").unwrap();
        assert_eq!((b.text().unwrap(), b.line()), ("xA\n", 3));
        let error = b.number(0..=9).unwrap_err();
        assert_eq!(
            error.to_string(),
            "line 3: a[1].b is \"xA\\n\": a whole number from 0 to 9 is expected"
        );
        assert!(root.get("d").unwrap().is_none());
        let missing = items[1].need("z").err().unwrap();
        assert_eq!(
            missing.to_string(),
            "line 3: a[1].z is nothing: the field is missing"
        );
    }

    #[test]
    fn what_is_no_json_is_refused_at_its_place() {
        for (text, line, problem) in [
            ("", 1, "a value must begin here"),
            ("{\"a\":1,\n\"a\":2}", 2, "twice"),
            ("[1,\n2", 2, "goes on with"),
            ("[1]\n]", 2, "behind its end"),
            ("\"a\nb\"", 1, "does not end"),
            ("[1e999]", 1, "no number"),
            ("[\"\\q\"]", 1, "no character"),
            ("[\"\\u12g4\"]", 1, "four hexadecimal"),
            (&"[".repeat(100_000), 1, "too deeply"),
        ] {
            let error = Node::parse(text).unwrap_err();
            assert_eq!(error.line, line, "{error}");
            assert!(error.problem.contains(problem), "{error}");
        }
    }
}
