//! A session that speaks the extended protocol over a socket of the machine. Several statements go
//! in one message and come back in one answer, which libpq's simple calls cannot.

use std::io::{self, Read, Write};
use std::ops::Range;
use std::os::unix::net::UnixStream;

const PROTOCOL: i32 = 196_608;

#[derive(Clone, Debug)]
pub struct Server {
    pub host: String,
    pub port: String,
    pub user: String,
    pub database: String,
}

/// What a statement has answered: where its rows are in the session's input.
#[derive(Debug)]
pub struct Answer {
    rows: Vec<Range<usize>>,
}

#[derive(Clone, Debug)]
pub struct Failure {
    pub code: String,
    pub message: String,
}

pub struct Session {
    stream: UnixStream,
    output: Vec<u8>,
    /// The answers to what was sent last.
    input: Vec<u8>,
    pub pid: i32,
}

fn broken(text: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text.to_owned())
}

fn number<const N: usize>(bytes: &[u8], at: usize) -> io::Result<[u8; N]> {
    bytes.get(at..at + N).and_then(|part| part.try_into().ok()).ok_or_else(|| broken("a message is too short"))
}

fn integer(bytes: &[u8], at: usize) -> io::Result<i32> {
    Ok(i32::from_be_bytes(number(bytes, at)?))
}

impl Session {
    pub fn open(server: &Server, options: &str) -> io::Result<Self> {
        let stream = UnixStream::connect(format!("{}/.s.PGSQL.{}", server.host, server.port))?;
        let mut session = Self { stream, output: Vec::new(), input: Vec::new(), pid: 0 };
        let mut start = PROTOCOL.to_be_bytes().to_vec();
        let settings = [
            ("user", server.user.as_str()),
            ("database", &server.database),
            ("options", options),
            ("application_name", "process test"),
        ];
        for text in settings.iter().flat_map(|(name, value)| [name, value]) {
            start.extend(text.bytes());
            start.push(0);
        }
        start.push(0);
        session.output.extend((start.len() as i32 + 4).to_be_bytes());
        session.output.extend(start);
        let kinds = session.exchange()?;
        for (kind, body) in kinds {
            match kind {
                b'K' => session.pid = integer(&session.input, body.start)?,
                b'E' => return Err(io::Error::other(session.failure(body).message)),
                b'R' if integer(&session.input, body.start)? != 0 => {
                    return Err(broken("the server asks for a password"));
                }
                _ => {}
            }
        }
        Ok(session)
    }

    fn message(&mut self, kind: u8, body: impl FnOnce(&mut Vec<u8>)) {
        self.output.push(kind);
        let at = self.output.len();
        self.output.extend([0; 4]);
        body(&mut self.output);
        let size = (self.output.len() - at) as i32;
        self.output[at..at + 4].copy_from_slice(&size.to_be_bytes());
    }

    /// Adds a statement by this name, to be sent before its first use.
    pub fn prepare(&mut self, name: &str, sql: &str) {
        self.message(b'P', |out| {
            for text in [name, sql] {
                out.extend(text.bytes());
                out.push(0);
            }
            out.extend([0; 2]);
        });
    }

    /// Adds the run of a statement.
    pub fn add(&mut self, name: &str, values: &[&str]) {
        self.message(b'B', |out| {
            out.push(0);
            out.extend(name.bytes());
            out.extend([0; 3]);
            out.extend((values.len() as i16).to_be_bytes());
            for value in values {
                out.extend((value.len() as i32).to_be_bytes());
                out.extend(value.bytes());
            }
            out.extend([0; 2]);
        });
        self.message(b'E', |out| out.extend([0; 5]));
    }

    /// Sends what was added. The answers are those of the statements up to the first that failed.
    pub fn run(&mut self) -> io::Result<(Vec<Answer>, Option<Failure>)> {
        self.message(b'S', |_| {});
        let (mut answers, mut rows, mut failure) = (Vec::new(), Vec::new(), None);
        for (kind, body) in self.exchange()? {
            match kind {
                b'D' => rows.push(body),
                b'C' => answers.push(Answer { rows: std::mem::take(&mut rows) }),
                b'E' => failure = Some(self.failure(body)),
                _ => {}
            }
        }
        Ok((answers, failure))
    }

    /// A statement by itself: the first column of its first row.
    pub fn ask(&mut self, sql: &str, values: &[&str]) -> io::Result<Result<Option<String>, Failure>> {
        self.prepare("", sql);
        self.add("", values);
        let (answers, failure) = self.run()?;
        if let Some(failure) = failure {
            return Ok(Err(failure));
        }
        let first = answers.first().and_then(|answer| answer.rows.first()).cloned();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Ok(Ok(first.and_then(|row| self.fields(row).next().flatten().map(text))))
    }

    /// The rows of an answer to what was sent last.
    pub fn rows<'a>(&'a self, answer: &'a Answer) -> impl Iterator<Item = Vec<Option<&'a [u8]>>> + 'a {
        answer.rows.iter().map(|row| self.fields(row.clone()).collect())
    }

    fn fields(&self, row: Range<usize>) -> impl Iterator<Item = Option<&[u8]>> {
        let body = &self.input[row];
        let mut at = 2;
        std::iter::from_fn(move || {
            let size = integer(body, at).ok()?;
            at += 4;
            let Ok(size) = usize::try_from(size) else {
                return Some(None);
            };
            let field = body.get(at..at + size);
            at += size;
            Some(field)
        })
    }

    fn failure(&self, body: Range<usize>) -> Failure {
        let mut failure = Failure { code: String::new(), message: String::new() };
        for field in self.input[body].split(|&byte| byte == 0).filter(|field| !field.is_empty()) {
            let text = || String::from_utf8_lossy(&field[1..]).into_owned();
            match field[0] {
                b'C' => failure.code = text(),
                b'M' => failure.message = text(),
                _ => {}
            }
        }
        failure
    }

    /// Sends the output, and reads until the server is ready: the kind of each message, and where
    /// its body is.
    fn exchange(&mut self) -> io::Result<Vec<(u8, Range<usize>)>> {
        self.stream.write_all(&self.output)?;
        self.output.clear();
        self.input.clear();
        let (mut at, mut messages, mut part) = (0, Vec::new(), [0; 8192]);
        loop {
            while self.input.len() >= at + 5 {
                let (kind, size) = (self.input[at], integer(&self.input, at + 1)?);
                let end = at + 1 + usize::try_from(size).map_err(|_| broken("a message has no size"))?;
                if self.input.len() < end {
                    break;
                }
                messages.push((kind, at + 5..end));
                at = end;
                if kind == b'Z' {
                    return Ok(messages);
                }
            }
            let count = self.stream.read(&mut part)?;
            if count == 0 {
                // The last words of a session that is terminated.
                let said = messages.into_iter().rev().find(|(kind, _)| *kind == b'E');
                let text = said.map(|(_, body)| self.failure(body).message);
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, text.unwrap_or_default()));
            }
            self.input.extend(&part[..count]);
        }
    }
}
