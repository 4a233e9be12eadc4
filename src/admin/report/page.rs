//! HTML: a page of headings, tiles, charts and tables.

/// Colours, of which each has a light and a dark form, and the layout. Series and protocols take
/// the colours `c0` to `c7` in turn.
const STYLE: &str = include_str!("style.css");

/// Text as HTML.
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            c => out.push(c),
        }
    }
    out
}

/// A number for people: three digits at least, and its thousands apart.
pub fn count(n: f64) -> String {
    let digits = format!("{:.0}", n.max(0.0));
    let mut out = String::new();
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i) % 3 == 0 {
            out.push(',');
        }
        out.push(c);
    }
    out
}

/// A column of a table: its name, and whether it has numbers.
type Column<'a> = (&'a str, bool);

/// Rows of text.
pub struct Table<'a> {
    columns: &'a [Column<'a>],
    rows: Vec<Vec<String>>,
}

impl<'a> Table<'a> {
    /// A table without rows.
    pub fn new(columns: &'a [Column<'a>]) -> Table<'a> {
        Table { columns, rows: Vec::new() }
    }

    /// Adds a row.
    pub fn row(&mut self, values: &[String]) {
        self.rows.push(values.to_vec());
    }
}

/// A page that is being written.
pub struct Page {
    html: String,
}

impl Page {
    /// Begins the page of a database.
    pub fn new(database: &str) -> Page {
        let title = format!("mixedcc report: {}", escape(database));
        let html = format!(
            "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <meta name=\"color-scheme\" content=\"light dark\">\n<title>{title}</title>\n\
             <style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n<h1>{title}</h1>\n"
        );
        Page { html }
    }

    /// A paragraph.
    pub fn text(&mut self, text: &str) {
        self.html.push_str(&format!("<p>{}</p>\n", escape(text)));
    }

    /// A section's heading, and a sentence on it.
    pub fn heading(&mut self, title: &str, about: &str) {
        self.html.push_str(&format!("<h2>{}</h2>\n<p class=\"about\">{}</p>\n", escape(title), escape(about)));
    }

    /// The figures that are looked at first: a name, a value, what it is of.
    pub fn tiles(&mut self, tiles: &[(&str, String, &str)]) {
        self.html.push_str("<div class=\"tiles\">\n");
        for (name, value, about) in tiles {
            self.html.push_str(&format!(
                "<div class=\"tile\"><span>{}</span><strong>{}</strong><small>{}</small></div>\n",
                escape(name),
                escape(value),
                escape(about)
            ));
        }
        self.html.push_str("</div>\n");
    }

    /// A chart with its title; `svg` is HTML.
    pub fn chart(&mut self, title: &str, svg: &str) {
        self.html.push_str(&format!("<figure><figcaption>{}</figcaption>\n{svg}</figure>\n", escape(title)));
    }

    /// A table, or that there is nothing in it.
    pub fn table(&mut self, table: &Table) {
        if table.rows.is_empty() {
            self.html.push_str("<p class=\"none\">None.</p>\n");
            return;
        }
        self.html.push_str("<div class=\"wide\"><table>\n<thead><tr>");
        for (name, number) in table.columns {
            let class = if *number { " class=\"n\"" } else { "" };
            self.html.push_str(&format!("<th scope=\"col\"{class}>{}</th>", escape(name)));
        }
        self.html.push_str("</tr></thead>\n<tbody>\n");
        for row in &table.rows {
            self.html.push_str("<tr>");
            for (value, (_, number)) in row.iter().zip(table.columns) {
                let class = if *number { " class=\"n\"" } else { "" };
                self.html.push_str(&format!("<td{class}>{}</td>", escape(value)));
            }
            self.html.push_str("</tr>\n");
        }
        self.html.push_str("</tbody>\n</table></div>\n");
    }

    /// A table under a heading of its own.
    pub fn some(&mut self, columns: &[Column], rows: Vec<Vec<String>>, title: &str) {
        self.html.push_str(&format!("<h3>{}</h3>\n", escape(title)));
        self.table(&Table { columns, rows });
    }

    /// The whole page.
    pub fn end(mut self) -> String {
        self.html.push_str("</main>\n</body>\n</html>\n");
        self.html
    }
}

#[cfg(test)]
mod unit {
    use super::*;

    #[test]
    fn text_is_no_html() {
        let mut page = Page::new("a<b>\"&");
        page.some(&[("x<", false)], vec![vec!["<script>".to_owned()]], "t&");
        let html = page.end();
        assert!(html.contains("a&lt;b&gt;&quot;&amp;") && html.contains("<td>&lt;script&gt;</td>"));
        assert!(!html.contains("<script"));
    }

    #[test]
    fn thousands_are_apart() {
        assert_eq!((count(0.4), count(999.0), count(1234567.0)), ("0".into(), "999".into(), "1,234,567".into()));
    }
}
