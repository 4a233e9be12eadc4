//! The files with saved rows. None that holds rows is deleted before these are loaded, and none is
//! overwritten: what cannot be used is renamed, and the log names it.

use pgrx::prelude::*;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// What a clean shutdown has saved. In the data directory, which is the working directory of every
/// process.
pub const FILE: &str = "mixedcc.rows";
/// What is being saved. It stays if the server is killed meanwhile.
pub const TEMPORARY: &str = "mixedcc.rows.tmp";
/// With a number: files with tables that could not be loaded yet. Each start reads them.
const KEPT: &str = "mixedcc.rows.kept.";
/// With a number: files that could not be used. They are for the administrator.
const UNUSED: &str = "mixedcc.rows.unused.";

/// A file that holds nothing any more that is not in memory.
pub struct Finished {
    path: String,
    identity: Identity,
}

/// Device, inode, size and time of the last change. The inode alone names no file: as soon as one
/// is deleted, the next one may get its number.
type Identity = (u64, u64, u64, i64, i64);

/// None: it is no file with contents, but a link, a directory or a pipe.
fn identity(m: &fs::Metadata) -> Option<Identity> {
    m.is_file().then(|| (m.dev(), m.ino(), m.size(), m.mtime(), m.mtime_nsec()))
}

impl Finished {
    /// The file which is at this path now.
    pub fn of(path: &str, file: &File) -> io::Result<Finished> {
        let identity = identity(&file.metadata()?).ok_or(io::ErrorKind::InvalidInput)?;
        Ok(Finished { path: path.into(), identity })
    }

    /// Deletes it, if it is still there: another one may have been put into its place.
    pub fn delete(&self) {
        let there = fs::symlink_metadata(&self.path).ok().and_then(|m| identity(&m));
        if there == Some(self.identity) {
            if let Err(x) = fs::remove_file(&self.path) {
                warning!("mixedcc could not remove \"{}\", whose rows were loaded: {x}", self.path);
            }
        }
    }
}

fn exists(path: &str) -> bool {
    fs::symlink_metadata(path).is_ok()
}

/// The files that a start reads, in order.
pub fn sources() -> Vec<String> {
    let mut kept: Vec<u64> = match fs::read_dir(".") {
        Ok(all) => all.flatten().filter_map(|e| e.file_name().to_str()?.strip_prefix(KEPT)?.parse().ok()).collect(),
        Err(x) => error!("mixedcc could not read the data directory: {x}"),
    };
    kept.sort_unstable();
    let kept = kept.into_iter().map(|n| format!("{KEPT}{n}"));
    [FILE, TEMPORARY].into_iter().filter(|f| exists(f)).map(String::from).chain(kept).collect()
}

/// Opens a file to read it. A symbolic link or a FIFO is an error, not followed and not waited for.
pub fn open(path: &str) -> Result<File, String> {
    match fs::symlink_metadata(path) {
        Ok(m) if m.is_file() => File::open(path).map_err(|x| x.to_string()),
        Ok(_) => Err("it is not a regular file".into()),
        Err(x) => Err(x.to_string()),
    }
}

/// Renames a file to the first free name with this beginning. Returns that.
fn rename(path: &str, to: &str) -> io::Result<String> {
    let free = (1u64..).map(|n| format!("{to}{n}")).find(|p| !exists(p)).unwrap_or_default();
    fs::rename(path, &free)?;
    File::open(Path::new("."))?.sync_all()?;
    Ok(free)
}

/// Renames a file that cannot be used. False if that failed.
pub fn set_aside(path: &str, why: &str) -> bool {
    match rename(path, UNUSED) {
        Ok(new) => {
            warning!("mixedcc did not use \"{path}\": {why}");
            log!("mixedcc has renamed \"{path}\" to \"{new}\"");
            true
        }
        Err(x) => {
            warning!("mixedcc did not use \"{path}\", and could not rename it ({x}): {why}");
            false
        }
    }
}

/// Keeps a file for the next start. Returns how it is called now.
pub fn keep(path: &str) -> String {
    if path.starts_with(KEPT) {
        return path.into();
    }
    rename(path, KEPT).unwrap_or_else(|x| error!("mixedcc could not rename \"{path}\": {x}"))
}

#[cfg(test)]
mod unit {
    use super::*;

    /// A file system gives the number of a deleted file to the next one: a file that was written
    /// anew stands for that, which has the same inode in any case.
    #[test]
    fn another_file_with_the_same_inode_is_left() {
        let path = std::env::temp_dir().join(format!("mixedcc-finished-{}", std::process::id()));
        let path = path.to_str().unwrap();
        fs::write(path, "rows that were loaded").unwrap();
        let finished = Finished::of(path, &File::open(path).unwrap()).unwrap();
        fs::write(path, "other rows").unwrap();
        finished.delete();
        assert_eq!(fs::read_to_string(path).unwrap(), "other rows");
        let finished = Finished::of(path, &File::open(path).unwrap()).unwrap();
        finished.delete();
        assert!(!exists(path));
    }
}
