//! Charts over time, as SVG: one slice of [`Data`] is one step to the right.

use super::data::{Data, Part};
use super::page::{count, escape};
use super::time;

const WIDTH: f64 = 1000.0;
const HEIGHT: f64 = 180.0;
/// Room for names at the left, and for times below.
const LEFT: f64 = 70.0;
const BELOW: f64 = 22.0;
/// Height of a partition's row.
const ROW: f64 = 18.0;
/// Room for the name of a partition.
const NAMES: f64 = 240.0;
/// Characters of such a name.
const NAME_CHARACTERS: usize = 34;
/// Colours of the style sheet.
const COLOURS: usize = 8;

/// A number that is at least `n` and whose quarters are round: 1, 2, 4 or 8 times a power of ten.
fn round_up(n: f64) -> f64 {
    let n = n.max(1e-9);
    let power = 10f64.powf(n.log10().floor());
    [1.0, 2.0, 4.0, 8.0, 10.0].into_iter().map(|f| f * power).find(|r| *r >= n * 0.999_999).unwrap_or(n)
}

/// A number at an axis: what is below 100 has up to three places.
fn label(n: f64) -> String {
    if n >= 100.0 {
        return count(n);
    }
    let text = format!("{n:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// A frame with lines at equal values up to `most`, and times below.
struct Frame {
    left: f64,
    height: f64,
    step: f64,
    svg: String,
}

impl Frame {
    fn new(data: &Data, left: f64, height: f64, about: &str) -> Frame {
        let all = height + BELOW;
        let svg = format!("<svg viewBox=\"0 0 {WIDTH} {all:.0}\" role=\"img\" aria-label=\"{}\">\n", escape(about));
        let mut frame = Frame { left, height, step: (WIDTH - left) / data.slices() as f64, svg };
        frame.times(data);
        frame
    }

    fn times(&mut self, data: &Data) {
        let day = data.until - data.since > 86_400_000_000;
        for part in 0..=4u64 {
            let at = data.since + (data.until - data.since) / 4 * part;
            let x = self.left + (WIDTH - self.left) / 4.0 * part as f64;
            let anchor = ["start", "middle", "middle", "middle", "end"][part as usize];
            let whole = time(at);
            let text = if day { whole.get(5..16) } else { whole.get(11..19) }.unwrap_or(&whole).to_owned();
            self.svg.push_str(&format!(
                "<text x=\"{x:.0}\" y=\"{:.0}\" text-anchor=\"{anchor}\">{}</text>\n",
                self.height + 16.0,
                escape(&text)
            ));
        }
    }

    fn values(&mut self, most: f64) {
        for part in 0..=4 {
            let y = self.y(most / 4.0 * part as f64, most);
            self.svg.push_str(&format!(
                "<line class=\"grid\" x1=\"{:.0}\" x2=\"{WIDTH}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>\
                 <text x=\"{:.0}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>\n",
                self.left,
                self.left - 6.0,
                (y + 4.0).max(10.0),
                label(most / 4.0 * part as f64)
            ));
        }
    }

    fn x(&self, slice: usize) -> f64 {
        self.left + slice as f64 * self.step
    }

    fn y(&self, value: f64, most: f64) -> f64 {
        self.height - value / most * (self.height - 4.0)
    }

    /// A bar from one value to another, with a text that the browser shows on it.
    fn bar(&mut self, slice: usize, (from, to): (f64, f64), most: f64, colour: usize, about: &str) {
        let (top, bottom) = (self.y(to, most), self.y(from, most));
        self.svg.push_str(&format!(
            "<rect class=\"f{}\" x=\"{:.1}\" y=\"{top:.1}\" width=\"{:.1}\" height=\"{:.1}\"><title>{}</title></rect>\n",
            colour % COLOURS,
            self.x(slice),
            self.step + 0.1,
            (bottom - top).max(0.0),
            escape(about)
        ));
    }

    fn end(mut self) -> String {
        self.svg.push_str("</svg>\n");
        self.svg
    }
}

fn moment(data: &Data, slice: usize) -> String {
    time(data.since + (data.until - data.since) / data.slices() as u64 * slice as u64)
}

fn most(values: impl Iterator<Item = f64>) -> f64 {
    round_up(values.fold(0.0, f64::max).max(1e-9))
}

/// One amount, as bars without gaps.
pub fn area(data: &Data, values: &[Option<f64>]) -> String {
    let most = most(values.iter().flatten().copied());
    let mut frame = Frame::new(data, LEFT, HEIGHT, "an amount over time");
    frame.values(most);
    for (slice, value) in values.iter().enumerate() {
        if let Some(v) = value.filter(|v| *v > 0.0) {
            frame.bar(slice, (0.0, v), most, 0, &format!("{}: {}", moment(data, slice), label(v)));
        }
    }
    frame.end()
}

/// Several amounts, one upon the other, and their names below.
pub fn stack(data: &Data, series: &[(String, Vec<Option<f64>>)]) -> String {
    if series.is_empty() {
        return "<p class=\"none\">None.</p>\n".to_owned();
    }
    let sum = |slice: usize| series.iter().filter_map(|(_, v)| v[slice]).sum::<f64>();
    let most = most((0..data.slices()).map(sum));
    let mut frame = Frame::new(data, LEFT, HEIGHT, "amounts over time, by reason");
    frame.values(most);
    for slice in 0..data.slices() {
        let mut from = 0.0;
        for (colour, (name, values)) in series.iter().enumerate() {
            let Some(v) = values[slice].filter(|v| *v > 0.0) else { continue };
            frame.bar(slice, (from, from + v), most, colour, &format!("{}: {name}, {}", moment(data, slice), label(v)));
            from += v;
        }
    }
    frame.end() + &keys(series.iter().map(|(name, _)| name.as_str()))
}

/// One amount as a line, below a limit.
pub fn line(data: &Data, values: &[Option<f64>], limit: f64) -> String {
    let highest = values.iter().flatten().copied().fold(0.0, f64::max);
    let most = if limit >= highest { limit.max(1e-9) } else { round_up(highest) };
    let mut frame = Frame::new(data, LEFT, HEIGHT, "an amount over time, and its limit");
    frame.values(most);
    let y = frame.y(limit, most);
    frame.svg.push_str(&format!("<line class=\"limit\" x1=\"{LEFT}\" x2=\"{WIDTH}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>\n"));
    let mut path = String::new();
    let mut drawing = false;
    for (slice, value) in values.iter().enumerate() {
        if let Some(v) = value {
            let (x, y) = (frame.x(slice), frame.y(*v, most));
            let pen = if drawing { 'L' } else { 'M' };
            path.push_str(&format!("{pen}{x:.1} {y:.1}H{:.1}", x + frame.step));
        }
        drawing = value.is_some();
    }
    frame.svg.push_str(&format!("<path class=\"pen\" d=\"{path}\"/>\n"));
    frame.end()
}

/// A row of colours for each partition: the protocol that it had.
pub fn protocols(data: &Data, parts: &[(&String, u32, &Part)]) -> String {
    if parts.is_empty() {
        return "<p class=\"none\">None.</p>\n".to_owned();
    }
    let mut names: Vec<&str> = parts.iter().flat_map(|p| p.2.protocols.iter().flatten()).map(String::as_str).collect();
    names.sort_unstable_by_key(|n| (n.contains('+'), *n));
    names.dedup();
    let mut frame = Frame::new(data, NAMES, parts.len() as f64 * ROW, "the protocol of each partition over time");
    for (row, (table, no, part)) in parts.iter().enumerate() {
        let y = row as f64 * ROW;
        frame.svg.push_str(&format!(
            "<text x=\"{:.0}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>\n",
            NAMES - 8.0,
            y + ROW - 5.0,
            escape(&short(table, *no))
        ));
        for (from, to, name) in runs(&part.protocols) {
            let colour = names.iter().position(|n| *n == name).unwrap_or(0);
            frame.svg.push_str(&format!(
                "<rect class=\"f{}\" x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\"><title>{}</title></rect>\n",
                colour % COLOURS,
                frame.x(from),
                y + 1.0,
                (to - from) as f64 * frame.step,
                ROW - 2.0,
                escape(&format!("{table}, partition {no}: {name} from {}", moment(data, from)))
            ));
        }
    }
    frame.end() + &keys(names.into_iter())
}

/// The end of a table's name, and the partition's number.
fn short(table: &str, no: u32) -> String {
    let whole = format!("{table} {no}");
    let n = whole.chars().count();
    match n > NAME_CHARACTERS {
        true => format!("...{}", whole.chars().skip(n - NAME_CHARACTERS + 3).collect::<String>()),
        false => whole,
    }
}

/// Slices in a row with one protocol.
fn runs(protocols: &[Option<String>]) -> Vec<(usize, usize, &str)> {
    let mut out: Vec<(usize, usize, &str)> = Vec::new();
    for (slice, protocol) in protocols.iter().enumerate() {
        let Some(name) = protocol.as_deref() else { continue };
        match out.last_mut() {
            Some((_, to, last)) if *to == slice && *last == name => *to = slice + 1,
            _ => out.push((slice, slice + 1, name)),
        }
    }
    out
}

fn keys<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let key = |(i, name): (usize, &str)| format!("<li><i class=\"f{}\"></i>{}</li>\n", i % COLOURS, escape(name));
    format!("<ul class=\"keys\">\n{}</ul>\n", names.enumerate().map(key).collect::<String>())
}

#[cfg(test)]
mod unit {
    use super::*;

    #[test]
    fn axes_end_at_round_numbers() {
        assert_eq!([0.7, 1.0, 1.2, 37.0, 420.0].map(round_up), [0.8, 1.0, 2.0, 40.0, 800.0]);
        assert_eq!([0.025, 2.5, 0.0, 1234.0].map(label), ["0.025", "2.5", "0", "1,234"]);
    }

    #[test]
    fn equal_protocols_are_one_bar() {
        let p = |n: &str| Some(n.to_owned());
        let all = [p("occ"), p("occ"), None, p("occ"), p("2pl")];
        assert_eq!(runs(&all), [(0, 2, "occ"), (3, 4, "occ"), (4, 5, "2pl")]);
    }
}
