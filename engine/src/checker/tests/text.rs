//! The text form: a written history can be read back, and errors name their line.

use super::*;
use crate::checker::{read_lines, write_lines};

fn parse(text: &str) -> Result<History, String> {
    let mut history = History::default();
    read_lines(&mut history, text.as_bytes()).map_err(|error| error.to_string())?;
    Ok(history)
}

#[test]
fn every_event_survives_a_round_trip() {
    let text = r#"
# a comment
{"initial": "lists", "low": 1, "high": 3}
{"initial": "counters", "keys": [7], "value": 5}
{"id":1,"client":0,"status":"committed","level":"serializable","csn":12,"begin":1,"commit":2,"events":[
{"op":"read","t":"lists","k":1,"list":",4,5"},{"op":"read","t":"lists","k":9,"absent":true},
{"op":"read","t":"lists","k":2,"initial":true},{"op":"read","t":"counters","k":7,"count":5,"locked":true,"stmt":3},
{"op":"read","k":1,"txn":3,"nth":2},{"op":"read","k":1,"value":3}]}
{"id":2,"status":"aborted","level":"read committed","events":[
{"op":"insert","t":"lists","k":10,"append":6},{"op":"update","t":"lists","k":1,"append":7,"saw":"4,5,7"},
{"op":"update","k":1,"value":1,"saw":{"value":3}},{"op":"update","t":"counters","k":7,"count":6,"undone":true},
{"op":"delete","t":"lists","k":1,"saw":[4]},{"op":"delete","k":1,"saw":{"txn":1}}]}
{"id":3,"status":"unknown","level":"repeatable read","events":[{"op":"scan","t":"lists","low":1,"rows":[{"k":1,"list":[4]}]}]}
{"id":4,"status":"committed","level":"serializable read only","last":true,"events":[]}
"#;
    let text = text.replace(",\n{", ",{").replace("[\n{", "[{");
    let history = parse(&text).expect("a history");
    assert_eq!(history.transactions.len(), 4);
    assert_eq!(history.initial.len(), 4);
    assert_eq!(history.initial[&Key::new(1, 7)], 5);
    let mut written = Vec::new();
    write_lines(&history, &mut written).expect("writes to memory");
    let again = parse(std::str::from_utf8(&written).expect("UTF-8")).expect("its own output");
    // Tables are numbered as they appear, which may differ: compare the written texts.
    let mut twice = Vec::new();
    write_lines(&again, &mut twice).expect("writes to memory");
    let sorted = |bytes: &[u8]| {
        let mut lines: Vec<String> = String::from_utf8_lossy(bytes).lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    assert_eq!(sorted(&written), sorted(&twice));
    assert_eq!(format!("{:?}", history.transactions[3]), format!("{:?}", again.transactions[3]));
}

#[test]
fn errors_name_their_line() {
    let good = r#"{"id":1,"status":"committed","level":"serializable","events":[]}"#;
    for (bad, wanted) in [
        ("{", "EOF"),
        (r#"{"id":1,"status":"done","level":"serializable","events":[]}"#, "unknown status"),
        (r#"{"id":1,"status":"aborted","level":"chaos","events":[]}"#, "unknown level"),
        (r#"{"id":1,"status":"aborted","level":"snapshot","evnts":[]}"#, "unknown field"),
        (r#"{"id":1,"status":"aborted","level":"snapshot","events":[{"op":"read","k":1}]}"#, "exactly one"),
        (r#"{"id":1,"status":"aborted","level":"snapshot","events":[{"op":"read","k":1,"list":"1,b"}]}"#, "not the id"),
        (
            r#"{"id":1,"status":"aborted","level":"snapshot","events":[{"op":"update","k":1,"appnd":3}]}"#,
            "unknown field",
        ),
        (r#"{"initial":"t","low":1}"#, "belong together"),
    ] {
        let error = parse(&format!("{good}\n{bad}\n")).expect_err(bad);
        assert!(error.starts_with("line 2: ") && error.contains(wanted), "{bad}: {error}");
    }
}

#[test]
fn a_history_in_text_is_judged() {
    let text = r#"{"id":1,"status":"committed","level":"serializable","events":[{"op":"read","t":"l","k":1,"list":""},{"op":"update","t":"l","k":2,"append":1}]}
{"id":2,"status":"committed","level":"serializable","events":[{"op":"read","t":"l","k":2,"list":""},{"op":"update","t":"l","k":1,"append":2}]}"#;
    let verdict = check(&parse(text).expect("a history"), &Options::default());
    only(&verdict, AnomalyKind::G2Item);
    assert!(verdict.to_string().contains("l:1"), "{verdict}");
}
