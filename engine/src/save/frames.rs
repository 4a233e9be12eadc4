//! A stream of bytes in frames with checksums: every byte that is read has been verified.
//!
//! A frame is `[length: u32][CRC-32C: u32][bytes]`, little endian. The checksum covers the frame's
//! number too, so that a missing or misplaced frame is noticed.

use super::LoadError;
use std::io::{Read, Write};

const FRAME: usize = 1 << 20;

fn checksum(number: u64, bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&number.to_le_bytes()), bytes)
}

/// The writer of frames.
pub struct Writer<W: Write> {
    out: W,
    buffer: Vec<u8>,
    number: u64,
}

impl<W: Write> Writer<W> {
    /// Begins a stream.
    pub fn new(out: W) -> Self {
        Writer { out, buffer: Vec::with_capacity(FRAME), number: 0 }
    }

    /// Adds bytes.
    pub fn put(&mut self, mut bytes: &[u8]) -> std::io::Result<()> {
        while !bytes.is_empty() {
            if self.buffer.len() == FRAME {
                self.flush()?;
            }
            let (now, later) = bytes.split_at(bytes.len().min(FRAME - self.buffer.len()));
            self.buffer.extend_from_slice(now);
            bytes = later;
        }
        Ok(())
    }
    /// Adds a number.
    pub fn put_u16(&mut self, n: u16) -> std::io::Result<()> {
        self.put(&n.to_le_bytes())
    }
    /// Adds a number.
    pub fn put_u32(&mut self, n: u32) -> std::io::Result<()> {
        self.put(&n.to_le_bytes())
    }
    /// Adds a number.
    pub fn put_u64(&mut self, n: u64) -> std::io::Result<()> {
        self.put(&n.to_le_bytes())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.out.write_all(&(self.buffer.len() as u32).to_le_bytes())?;
        self.out.write_all(&checksum(self.number, &self.buffer).to_le_bytes())?;
        self.out.write_all(&self.buffer)?;
        self.buffer.clear();
        self.number += 1;
        Ok(())
    }

    /// Ends the stream and returns the output.
    pub fn finish(mut self) -> std::io::Result<W> {
        if !self.buffer.is_empty() {
            self.flush()?;
        }
        self.out.flush()?;
        Ok(self.out)
    }
}

/// The reader of a stream that a [`Writer`] wrote.
pub struct Reader<R: Read> {
    input: R,
    buffer: Vec<u8>,
    at: usize,
    number: u64,
}

impl<R: Read> Reader<R> {
    /// Reads a stream from its beginning.
    pub fn new(input: R) -> Self {
        Reader { input, buffer: Vec::new(), at: 0, number: 0 }
    }

    fn next_frame(&mut self) -> Result<(), LoadError> {
        let mut head = [0; 8];
        self.input.read_exact(&mut head)?;
        let [a, b, c, d, e, f, g, h] = head;
        let length = u32::from_le_bytes([a, b, c, d]) as usize;
        if length == 0 || length > FRAME {
            return Err(LoadError::Damaged("a frame has an impossible length"));
        }
        self.buffer.resize(length, 0);
        self.at = 0;
        let read = self.input.read_exact(&mut self.buffer);
        if read.is_err() || checksum(self.number, &self.buffer) != u32::from_le_bytes([e, f, g, h]) {
            self.buffer.clear();
            read?;
            return Err(LoadError::Damaged("a checksum does not match"));
        }
        self.number += 1;
        Ok(())
    }

    /// Reads `len` bytes in pieces. `f` gets each piece with its offset.
    fn take(&mut self, len: usize, mut f: impl FnMut(usize, &[u8])) -> Result<(), LoadError> {
        let mut done = 0;
        while done < len {
            if self.at == self.buffer.len() {
                self.next_frame()?;
            }
            let n = (len - done).min(self.buffer.len() - self.at);
            f(done, &self.buffer[self.at..self.at + n]);
            self.at += n;
            done += n;
        }
        Ok(())
    }

    /// Fills a slice.
    pub fn get(&mut self, to: &mut [u8]) -> Result<(), LoadError> {
        self.take(to.len(), |at, piece| to[at..at + piece.len()].copy_from_slice(piece))
    }
    /// Skips bytes.
    pub fn skip(&mut self, len: usize) -> Result<(), LoadError> {
        self.take(len, |_, _| {})
    }
    /// Reads a number.
    pub fn get_u8(&mut self) -> Result<u8, LoadError> {
        let mut b = [0; 1];
        self.get(&mut b)?;
        Ok(b[0])
    }
    /// Reads a number.
    pub fn get_u16(&mut self) -> Result<u16, LoadError> {
        let mut b = [0; 2];
        self.get(&mut b)?;
        Ok(u16::from_le_bytes(b))
    }
    /// Reads a number.
    pub fn get_u32(&mut self) -> Result<u32, LoadError> {
        let mut b = [0; 4];
        self.get(&mut b)?;
        Ok(u32::from_le_bytes(b))
    }
    /// Reads a number.
    pub fn get_u64(&mut self) -> Result<u64, LoadError> {
        let mut b = [0; 8];
        self.get(&mut b)?;
        Ok(u64::from_le_bytes(b))
    }
}
