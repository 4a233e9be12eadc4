//! The memory that the machine has, or lets the server have.

/// A limit of memory.
#[derive(Debug, PartialEq, Eq)]
pub struct Limit {
    pub bytes: u64,
    /// Whose it is, for a message.
    pub of: String,
}

/// The smallest limit that counts for this process; `None` if the system tells none.
pub fn memory() -> Option<Limit> {
    let read = |path: &str| std::fs::read_to_string(path).ok();
    let machine = read("/proc/meminfo").and_then(|text| total(&text));
    let machine = machine.map(|bytes| Limit { bytes, of: "the machine".into() });
    let groups = read("/proc/self/cgroup").unwrap_or_default();
    of_groups(&groups, &read).into_iter().chain(machine).min_by_key(|l| l.bytes)
}

/// The machine's memory, by /proc/meminfo.
fn total(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|l| l.strip_prefix("MemTotal:"))?;
    let kilobytes: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kilobytes << 10)
}

/// The limits of control groups, by /proc/self/cgroup: of the process's own groups and those above
/// them. In a container the path may be that of the host; then the group's files are at the top.
fn of_groups(groups: &str, read: &impl Fn(&str) -> Option<String>) -> Vec<Limit> {
    let mut found = Vec::new();
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
        let (top, name) = match controllers {
            "" => ("/sys/fs/cgroup", "memory.max"),
            c if c.split(',').any(|c| c == "memory") => ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
            _ => continue,
        };
        let mut path = Some(path.trim_end_matches('/'));
        while let Some(p) = path {
            let file = format!("{top}{p}/{name}");
            // "max" is no limit.
            if let Some(bytes) = read(&file).and_then(|text| text.trim().parse().ok()) {
                found.push(Limit { bytes, of: format!("the control group ({file})") });
            }
            path = p.rsplit_once('/').map(|(above, _)| above);
        }
    }
    found
}

#[cfg(test)]
mod unit {
    use super::*;

    #[test]
    fn the_machine_tells_its_memory_in_kilobytes() {
        assert_eq!(total("Foo: 1 kB\nMemTotal:       24672316 kB\nMemFree: 7 kB\n"), Some(24672316 << 10));
        assert_eq!([total(""), total("MemTotal:\n"), total("MemTotal: much kB")], [None; 3]);
    }

    #[test]
    fn groups_and_those_above_them_have_limits() {
        let files = [
            ("/sys/fs/cgroup/a/b/memory.max", "max\n"),
            ("/sys/fs/cgroup/a/memory.max", "5000\n"),
            ("/sys/fs/cgroup/memory.max", "9000\n"),
            ("/sys/fs/cgroup/memory/old/memory.limit_in_bytes", "7000\n"),
        ];
        let read = |path: &str| files.iter().find(|f| f.0 == path).map(|f| f.1.to_owned());
        let bytes = |groups: &str| of_groups(groups, &read).into_iter().map(|l| l.bytes).collect::<Vec<_>>();
        assert_eq!(bytes("0::/a/b\n"), [5000, 9000]);
        assert_eq!(bytes("0::/\n"), [9000]);
        assert_eq!(bytes("3:cpu,memory:/old\n2:cpuset:/old\n"), [7000]);
        assert_eq!(bytes("4:memory:/of/the/host\n"), [0; 0]);
        assert_eq!(bytes("nothing\n\n"), [0; 0]);
        assert_eq!(of_groups("0::/a", &read)[0].of, "the control group (/sys/fs/cgroup/a/memory.max)");
    }
}
