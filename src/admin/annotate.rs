//! Annotations of functions: which arguments give the partition key of which table, and the group
//! of the transactions that call it.
//!
//! They are kept as a security label of the function: `partition(warehouse, 1); partition(item,
//! i_id); group(payment)`. A SERIALIZABLE statement that calls an annotated function declares the
//! partitions of constant arguments and parameters, in order, before it runs. The planner wraps the
//! other arguments in a function of ours, which declares the partition when the argument is
//! evaluated: right before the call.

use crate::admin::options;
use crate::pg::errors::{complain, must_be_writable};
use crate::pg::local::Local;
use pgrx::pg_sys::{self, Datum, Oid};
use pgrx::prelude::*;
use std::ffi::CStr;
use std::rc::Rc;

mod declare;
mod fit;
mod plan;

pub use declare::{
    abort_subtransaction, abort_transaction, around_call, at_argument, at_statement, commit_subtransaction, note_group,
    redeclare,
};

/// One annotation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Annotation {
    /// Name of the table, qualified or not, as SQL writes it.
    pub table: String,
    /// Numbers (from 1) or names of arguments, in the order of the partition key's columns.
    pub arguments: Vec<String>,
}

/// What the label of a function says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Label {
    /// The partitions that its arguments name.
    pub partitions: Vec<Annotation>,
    /// The group of a transaction that calls it.
    pub group: Option<String>,
}

/// An annotated function.
struct Function {
    oid: Oid,
    /// Hash value of its pg_proc entry in the system cache.
    hash: u32,
    /// The user that guarantees for the annotations.
    owner: Oid,
    /// Table and positions of arguments (from 0).
    partitions: Vec<(String, Vec<usize>)>,
    group: Option<String>,
}

/// All annotated functions of the database, and the function that wraps their arguments.
struct Known {
    functions: Vec<Function>,
    wrapper: Oid,
}

/// Of the process: a cache that invalidations empty.
struct Cache {
    /// `None`: to be read again.
    known: Option<Rc<Known>>,
    watching: bool,
    /// Invalidations so far: a label that was read while one arrived is not kept.
    changes: u64,
}

static CACHE: Local<Cache> = Local::new(Cache { known: None, watching: false, changes: 0 });

/// Raises an error about a label.
fn invalid(message: &str) -> ! {
    complain(
        PgSqlErrorCode::ERRCODE_INVALID_PARAMETER_VALUE,
        message,
        "Write 'partition(table, argument, ...)', with a name or number for each column of the table's partition key, or 'group(name)'; separate several by semicolons.",
    )
}

/// Installs the hooks.
pub fn init() {
    plan::init();
}

/// Splits outside double quotes.
fn split(text: &str, separator: char) -> Vec<&str> {
    let (mut out, mut start, mut quoted) = (Vec::new(), 0, false);
    for (i, c) in text.char_indices() {
        quoted ^= c == '"';
        if c == separator && !quoted {
            out.push(options::trim(&text[start..i]));
            start = i + c.len_utf8();
        }
    }
    out.push(options::trim(&text[start..]));
    out
}

/// Reads a label, or raises an error.
fn parse(label: &str) -> Label {
    read_label(label).unwrap_or_else(|why| invalid(&why))
}

/// Reads a label; what is wrong with it.
pub fn read_label(label: &str) -> Result<Label, String> {
    let mut out = Label::default();
    for part in split(label, ';').into_iter().filter(|p| !p.is_empty()) {
        if let Some(name) = inside(part, "group") {
            let name = options::column_name(name);
            if name.is_empty() || out.group.replace(name).is_some() {
                return Err(format!("annotation \"{part}\" is not the one name of a group"));
            }
            continue;
        }
        let inner = inside(part, "partition").ok_or_else(|| format!("\"{part}\" is not an annotation"))?;
        let items = split(inner, ',');
        if items.len() < 2 || items.iter().any(|i| i.is_empty()) {
            return Err(format!("annotation \"{part}\" does not name a table and arguments"));
        }
        out.partitions.push(Annotation {
            table: items[0].to_owned(),
            arguments: items[1..].iter().map(|s| (*s).to_owned()).collect(),
        });
    }
    Ok(out)
}

/// What is between the brackets of an annotation of this kind.
fn inside<'a>(part: &'a str, kind: &str) -> Option<&'a str> {
    let brackets = options::trim(part.strip_prefix(kind)?);
    brackets.strip_prefix('(')?.strip_suffix(')').map(options::trim)
}

fn write(label: &Label) -> String {
    let partitions = label.partitions.iter().map(|a| format!("partition({}, {})", a.table, a.arguments.join(", ")));
    let group = label.group.iter().map(|name| format!("group({})", options::quote_name(name)));
    partitions.chain(group).collect::<Vec<_>>().join("; ")
}

fn proc_address(oid: Oid) -> pg_sys::ObjectAddress {
    pg_sys::ObjectAddress { classId: pg_sys::ProcedureRelationId, objectId: oid, objectSubId: 0 }
}

/// Runs `f` with the pg_proc entry of a function.
fn with_proc<R>(oid: Oid, f: impl FnOnce(pg_sys::HeapTuple) -> R) -> Option<R> {
    // SAFETY: catalog look-up: any OID is answered, by a row or null. The row is released after its
    // last use. An ERROR in `f` leaves it to the resource owner.
    unsafe {
        let tup = pg_sys::SearchSysCache1(pg_sys::SysCacheIdentifier::PROCOID as i32, oid.into());
        if tup.is_null() {
            return None;
        }
        let r = f(tup);
        pg_sys::ReleaseSysCache(tup);
        Some(r)
    }
}

/// Names (empty where there is none) and types of a function's input arguments, in order.
fn inputs(oid: Oid) -> Option<(Vec<String>, Vec<Oid>)> {
    with_proc(oid, |tup| {
        let (mut types, mut names, mut modes) = (std::ptr::null_mut(), std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: `tup` is a row of pg_proc, as `with_proc` gives it. The arrays have `n` entries,
        // or are null (funcapi.h).
        unsafe {
            let n = pg_sys::get_func_arg_info(tup, &mut types, &mut names, &mut modes);
            (0..n as usize)
                .filter(|&i| modes.is_null() || matches!(*modes.add(i) as u8, b'i' | b'b' | b'v'))
                .map(|i| {
                    let name = if names.is_null() { String::new() } else { crate::pg::text::read(*names.add(i)) };
                    (name, *types.add(i))
                })
                .unzip()
        }
    })
}

/// Position (from 0) of an argument among the inputs.
fn position(names: &[String], argument: &str) -> Option<usize> {
    match argument.trim_start_matches('$').parse::<usize>() {
        Ok(n) => (1..=names.len()).contains(&n).then(|| n - 1),
        Err(_) => {
            let name = options::column_name(argument);
            names.iter().position(|n| !n.is_empty() && *n == name)
        }
    }
}

/// The table of a name, if it exists. A caller of an annotated function need not have the right to
/// use the table's schema: the function's owner needs rights (`sql::locate_for`).
fn table(name: &str) -> Option<Oid> {
    let c = crate::pg::text::write(name);
    // SAFETY: `c` is a C string that outlives the look-ups, and `rv` what they made of it. A text
    // that is no name is an ERROR, which unwinds.
    unsafe {
        let rv = crate::pg::compat::relation_name(c.as_ptr());
        let oid = if !(*rv).catalogname.is_null() {
            pg_sys::InvalidOid // of another database
        } else if (*rv).schemaname.is_null() {
            pg_sys::RelnameGetRelid((*rv).relname)
        } else {
            match pg_sys::get_namespace_oid((*rv).schemaname, true) {
                pg_sys::InvalidOid => pg_sys::InvalidOid,
                schema => pg_sys::get_relname_relid((*rv).relname, schema),
            }
        };
        (oid != pg_sys::InvalidOid).then_some(oid)
    }
}

fn function_name(oid: Oid) -> String {
    // SAFETY: catalog look-up: any OID is answered, by a C string.
    unsafe { crate::pg::text::read(pg_sys::format_procedure(oid)) }
}

/// Refuses wrong labels of functions. A table that does not exist is no error, and a key that the
/// arguments do not fit a warning: pg_dump restores functions before tables, and what fitted once.
pub fn check(function: Oid, label: &str) {
    for a in parse(label).partitions {
        if let Some(why) = misfit(function, &a) {
            warning!("the annotation of {} has no effect: {why}", function_name(function));
        }
    }
}

/// Why an annotation does not fit its table. Raises errors for what cannot be.
fn misfit(function: Oid, a: &Annotation) -> Option<String> {
    let Some((names, types)) = inputs(function) else {
        complain(
            PgSqlErrorCode::ERRCODE_UNDEFINED_FUNCTION,
            &format!("function with OID {} does not exist", function.to_u32()),
            "",
        )
    };
    let mut given = Vec::new();
    for argument in &a.arguments {
        let Some(n) = position(&names, argument) else {
            complain(
                PgSqlErrorCode::ERRCODE_UNDEFINED_PARAMETER,
                &format!("function {} has no input argument \"{argument}\"", function_name(function)),
                "Use the name of an input argument, or its number from 1.",
            )
        };
        given.push(types[n]);
    }
    let Some(oid) = table(&a.table) else {
        notice!("table {} of the annotation of {} does not exist yet", a.table, function_name(function));
        return None;
    };
    options::check_is_ours(oid);
    fit::misfit(a, &given, oid)
}

/// Tells all backends that the annotations of a function changed: also plans that call it are made
/// anew.
pub fn changed(function: Oid) {
    // SAFETY: `rel` is open until its last use, and `tup` is a row of it, as `with_proc` gives it.
    // The next command of this transaction sees the change.
    unsafe {
        let rel = pg_sys::table_open(pg_sys::ProcedureRelationId, pg_sys::RowExclusiveLock as i32);
        with_proc(function, |tup| pg_sys::CacheInvalidateHeapTuple(rel, tup, std::ptr::null_mut()));
        pg_sys::table_close(rel, pg_sys::RowExclusiveLock as i32);
        pg_sys::CommandCounterIncrement();
    }
}

fn must_own(function: Oid) {
    let Some(()) = with_proc(function, |_| ()) else {
        complain(
            PgSqlErrorCode::ERRCODE_UNDEFINED_FUNCTION,
            &format!("function with OID {} does not exist", function.to_u32()),
            "",
        )
    };
    // SAFETY: catalog look-ups of a function that was there just now. If it was dropped since, they
    // raise an ERROR, or give a null name, which aclcheck_error takes.
    unsafe {
        if !crate::pg::compat::owns_function(function, pg_sys::GetUserId()) {
            pg_sys::aclcheck_error(
                pg_sys::AclResult::ACLCHECK_NOT_OWNER,
                pg_sys::ObjectType::OBJECT_FUNCTION,
                pg_sys::get_func_name(function),
            );
        }
    }
}

/// Locks a function of the user against DROP and against other annotations, as SECURITY LABEL
/// does. `caller`: what changes its annotations.
fn lock_own(function: Oid, caller: &CStr) {
    must_be_writable(caller);
    must_own(function); // strangers must not lock it
    let lock = pg_sys::ShareUpdateExclusiveLock as pg_sys::LOCKMODE;
    // SAFETY: any OID is locked, also that of a function which was dropped since. A cancel unwinds.
    unsafe { pg_sys::LockDatabaseObject(pg_sys::ProcedureRelationId, function, 0, lock) };
    must_own(function);
}

/// Raises an error unless the user may call the function: a call locks partitions in its owner's
/// name.
fn must_call(function: Oid) {
    // SAFETY: catalog look-ups: any OID is answered. The name may be null, which aclcheck_error
    // takes.
    unsafe {
        if !crate::pg::compat::may_call(function, pg_sys::GetUserId()) {
            pg_sys::aclcheck_error(
                pg_sys::AclResult::ACLCHECK_NO_PRIV,
                pg_sys::ObjectType::OBJECT_FUNCTION,
                pg_sys::get_func_name(function),
            );
        }
    }
}

/// Schema and name of a table, quoted; `None`: it was dropped meanwhile.
fn qualified_name(table: Oid) -> Option<String> {
    // SAFETY: catalog look-ups: any OID is answered, by null or a C string.
    unsafe {
        let (space, name) = (pg_sys::get_namespace_name(pg_sys::get_rel_namespace(table)), pg_sys::get_rel_name(table));
        if space.is_null() || name.is_null() {
            return None;
        }
        Some(crate::pg::text::read(pg_sys::quote_qualified_identifier(space, name)))
    }
}

/// `mixedcc.annotate`.
pub fn add(function: Oid, table: Oid, arguments: &[String]) {
    lock_own(function, c"mixedcc.annotate()");
    options::check_is_ours(table);
    let name = qualified_name(table).unwrap_or_else(|| crate::pg::relations::no_such(table));
    if arguments.is_empty() {
        invalid("an annotation names at least one argument");
    }
    let mut all = options::label_of(proc_address(function)).map_or(Label::default(), |l| parse(&l));
    let arguments = arguments.iter().map(|a| options::quote_name(a)).collect();
    let new = Annotation { table: name, arguments };
    if let Some(why) = misfit(function, &new) {
        invalid(&why);
    }
    if !all.partitions.contains(&new) {
        all.partitions.push(new);
    }
    let label = write(&all);
    options::store_label(proc_address(function), Some(&label));
    changed(function);
}

/// `mixedcc.unannotate`.
pub fn remove(function: Oid) {
    lock_own(function, c"mixedcc.unannotate()");
    options::store_label(proc_address(function), None);
    changed(function);
}

#[pg_guard]
unsafe extern "C-unwind" fn forget(_arg: Datum, _cache: core::ffi::c_int, _hash: u32) {
    // SAFETY: a process has one thread, and `with_known` keeps no reference to `CACHE` while
    // PostgreSQL runs: what it uses is its own `Rc`.
    let cache = unsafe { CACHE.get_mut() };
    cache.known = None;
    cache.changes += 1;
}

/// Is any function of the database annotated? Outside transactions: no.
pub fn any() -> bool {
    with_known(|k| !k.functions.is_empty()).unwrap_or(false)
}

/// Runs `f` with the annotated functions. `None` if the catalog cannot be read now. `f` may read
/// catalogs.
fn with_known<R>(f: impl FnOnce(&Known) -> R) -> Option<R> {
    // SAFETY: a process has one thread, and each reference to `CACHE` is over before PostgreSQL or
    // `f` runs. These may deliver an invalidation, which empties it (`forget`).
    unsafe {
        if !pg_sys::IsTransactionState() || pg_sys::MyDatabaseId == pg_sys::InvalidOid {
            return None;
        }
        if !CACHE.get_mut().watching {
            pg_sys::CacheRegisterSyscacheCallback(
                pg_sys::SysCacheIdentifier::PROCOID as i32,
                Some(forget),
                Datum::from(0usize),
            );
            CACHE.get_mut().watching = true;
        }
        let cached = CACHE.get_mut().known.clone();
        let known = match cached {
            Some(k) => k,
            None => {
                let before = CACHE.get_mut().changes;
                let k = Rc::new(read());
                if CACHE.get_mut().changes == before {
                    CACHE.get_mut().known = Some(k.clone());
                }
                k
            }
        };
        Some(f(&known))
    }
}

/// Reads all annotations of the database.
fn read() -> Known {
    let mut functions = Vec::new();
    // SAFETY: `catalog` and `scan` are open until their last use; `tup` lasts until the next one is
    // asked for. The arrays have an entry for each column of pg_seclabel. An ERROR leaves both to
    // the resource owner.
    unsafe {
        let catalog = pg_sys::table_open(pg_sys::SecLabelRelationId, pg_sys::AccessShareLock as i32);
        let scan = pg_sys::systable_beginscan(
            catalog,
            pg_sys::InvalidOid,
            false,
            std::ptr::null_mut(),
            0,
            std::ptr::null_mut(),
        );
        let mut values = [Datum::from(0usize); pg_sys::Natts_pg_seclabel as usize];
        let mut nulls = [false; pg_sys::Natts_pg_seclabel as usize];
        loop {
            let tup = pg_sys::systable_getnext(scan);
            if tup.is_null() {
                break;
            }
            pg_sys::heap_deform_tuple(tup, (*catalog).rd_att, values.as_mut_ptr(), nulls.as_mut_ptr());
            let get = |a: u32| values[a as usize - 1];
            if get(pg_sys::Anum_pg_seclabel_classoid).value() as u32 != pg_sys::ProcedureRelationId.to_u32() {
                continue;
            }
            let text = |d: Datum| crate::pg::text::of_datum(d);
            if text(get(pg_sys::Anum_pg_seclabel_provider)).as_bytes() == options::PROVIDER.to_bytes() {
                let oid = Oid::from(get(pg_sys::Anum_pg_seclabel_objoid).value() as u32);
                functions.push((oid, text(get(pg_sys::Anum_pg_seclabel_label))));
            }
        }
        pg_sys::systable_endscan(scan);
        pg_sys::table_close(catalog, pg_sys::AccessShareLock as i32);
    }
    let functions: Vec<Function> = functions.into_iter().filter_map(|(oid, label)| function(oid, &label)).collect();
    let wrapper = if functions.is_empty() { pg_sys::InvalidOid } else { plan::wrapper() };
    Known { functions, wrapper }
}

fn function(oid: Oid, label: &str) -> Option<Function> {
    let (names, _) = inputs(oid)?;
    // SAFETY: `tup` is a row of pg_proc, as `with_proc` gives it.
    let owner = with_proc(oid, |tup| unsafe { (*pg_sys::GETSTRUCT(tup).cast::<pg_sys::FormData_pg_proc>()).proowner })?;
    let zero = Datum::from(0usize);
    // SAFETY: the hash value of any key of a system cache can be asked for.
    let hash = unsafe {
        pg_sys::GetSysCacheHashValue(pg_sys::SysCacheIdentifier::PROCOID as i32, oid.into(), zero, zero, zero)
    };
    // An unchecked label, which a superuser has written into the catalog, is none: statements run
    // nevertheless, and the view `mixedcc.annotations` says what is wrong.
    let Label { partitions, group } = read_label(label).unwrap_or_default();
    let partitions = partitions
        .into_iter()
        .filter_map(|a| Some((a.table, a.arguments.iter().map(|g| position(&names, g)).collect::<Option<Vec<_>>>()?)))
        .collect();
    Some(Function { oid, hash, owner, partitions, group })
}

#[cfg(test)]
mod unit {
    use super::*;

    #[test]
    fn labels_that_are_none() {
        assert_eq!(read_label("garbage((,").unwrap_err(), "\"garbage((,\" is not an annotation");
        assert!(read_label("partition(t)").is_err() && read_label("partition(t, )").is_err());
        assert!(read_label("group()").is_err() && read_label("group(a); group(b)").is_err());
        assert_eq!(read_label(""), Ok(Label::default()));
    }

    #[test]
    fn labels_round_trip() {
        let text = "partition(public.\"Ware;house\", 1); partition(district, w_id, $2); group(\"New order\")";
        let all = parse(text);
        assert_eq!(all.partitions.len(), 2);
        assert_eq!(all.partitions[0].table, "public.\"Ware;house\"");
        assert_eq!(all.partitions[1].arguments, ["w_id", "$2"]);
        assert_eq!(all.group.as_deref(), Some("New order"));
        assert_eq!(write(&all), text);
    }

    #[test]
    fn arguments_by_name_or_number() {
        let names = ["a".to_owned(), String::new(), "B".to_owned()];
        assert_eq!(position(&names, "A"), Some(0));
        assert_eq!(position(&names, "\"B\""), Some(2));
        assert_eq!(position(&names, "$2"), Some(1));
        assert_eq!(position(&names, "4"), None);
        assert_eq!(position(&names, "b"), None);
    }
}
