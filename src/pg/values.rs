//! Values with their types: casts, and expressions that are evaluated outside of a plan.

use crate::pg::compat;
use pgrx::pg_sys::{self, Datum, Oid};
use std::cell::Cell;

/// A value of a partition key: datum, NULL, type.
pub type Value = (Datum, bool, Oid);

/// The domain, if it is one, of which a function's results are. PostgreSQL leaves it to the
/// function that these fulfil the domain's constraints.
pub struct Domain {
    /// `InvalidOid`: it is no domain.
    typid: Oid,
    /// What `domain_check` keeps between its calls.
    kept: Cell<*mut core::ffi::c_void>,
    /// Where it lies.
    memory: pg_sys::MemoryContext,
}

impl Domain {
    /// Of a type that exists; `memory` lasts as long as the result is used.
    pub fn of(typid: Oid, memory: pg_sys::MemoryContext) -> Domain {
        // SAFETY: a catalog look-up.
        let is_domain = unsafe { pg_sys::getBaseType(typid) } != typid;
        let typid = if is_domain { typid } else { pg_sys::InvalidOid };
        Domain { typid, kept: Cell::new(std::ptr::null_mut()), memory }
    }

    /// Is there nothing to check?
    #[inline]
    pub fn is_none(&self) -> bool {
        self.typid == pg_sys::InvalidOid
    }

    /// Raises an error if a result, or NULL, does not fulfil the domain's constraints.
    ///
    /// # Safety
    /// A value of the domain's base type. `memory` is there still. An ERROR unwinds.
    #[inline]
    pub unsafe fn check(&self, value: Option<Datum>) {
        if !self.is_none() {
            let (d, null) = (value.unwrap_or(Datum::from(0)), value.is_none());
            // SAFETY: contract of this function. `kept` is that of earlier calls for this domain.
            unsafe { pg_sys::domain_check(d, null, self.typid, self.kept.as_ptr(), self.memory) };
        }
    }
}

/// A value of a key as its column's type: unknown literals are read, others cast where that is
/// implicit. Integers and what has no such cast stay.
///
/// # Safety
/// An open relation, which has the column, and a value of its type. An ERROR unwinds.
pub unsafe fn fit(rel: pg_sys::Relation, attnum: i16, (value, null, typid): Value) -> Value {
    // SAFETY: `rel` is open and has column `attnum` (contract of this function). An unknown literal
    // that is not NULL is a C string.
    unsafe {
        let att = compat::attribute((*rel).rd_att, attnum as usize - 1);
        let base = pg_sys::getBaseType(att.atttypid);
        if typid == base || typid == pg_sys::InvalidOid {
            return (value, null, base);
        }
        if typid == pg_sys::UNKNOWNOID {
            return if null { (value, true, base) } else { (read_literal(base, value), false, base) };
        }
        if is_integer(typid) && is_integer(base) {
            return (value, null, typid);
        }
        cast((value, null, typid), base).unwrap_or((value, null, typid))
    }
}

fn is_integer(t: Oid) -> bool {
    matches!(t, pg_sys::INT2OID | pg_sys::INT4OID | pg_sys::INT8OID)
}

/// Reads an unknown literal as a condition does: without the column's modifier, which would round
/// or cut it.
///
/// # Safety
/// `literal` is a C string. `typid` is a type that exists; an ERROR unwinds.
pub unsafe fn read_literal(typid: Oid, literal: Datum) -> Datum {
    let (mut function, mut param) = (pg_sys::InvalidOid, pg_sys::InvalidOid);
    // SAFETY: `literal` is a C string, and `typid` exists (contract of this function).
    unsafe {
        pg_sys::getTypeInputInfo(typid, &mut function, &mut param);
        pg_sys::OidInputFunctionCall(function, literal.cast_mut_ptr(), param, -1)
    }
}

/// Casts a value where that is implicit.
///
/// # Safety
/// `value` is one of type `typid`, or `null` is set; both types exist.
pub unsafe fn cast((value, null, typid): Value, to: Oid) -> Option<Value> {
    // SAFETY: `value` is one of type `typid`, or NULL (contract of this function). The expression
    // that is evaluated is of a constant alone, and has no variables.
    unsafe {
        let (mut len, mut byval) = (0, false);
        pg_sys::get_typlenbyval(typid, &mut len, &mut byval);
        let value = pg_sys::makeConst(typid, -1, pg_sys::get_typcollation(typid), len as i32, value, null, byval);
        let cast = pg_sys::coerce_to_target_type(
            std::ptr::null_mut(),
            value.cast(),
            typid,
            to,
            -1,
            pg_sys::CoercionContext::COERCION_IMPLICIT,
            pg_sys::CoercionForm::COERCE_IMPLICIT_CAST,
            -1,
        );
        (!cast.is_null()).then(|| evaluate(cast, std::ptr::null_mut()))
    }
}

/// What an implicit cast between two types runs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Conversion {
    /// There is none.
    None,
    /// Nothing, or a function of PostgreSQL's.
    BuiltIn,
    /// A function of a user, or it is not known.
    Foreign,
}

pub fn conversion(from: Oid, to: Oid) -> Conversion {
    use pg_sys::CoercionPathType::*;
    let mut function = pg_sys::InvalidOid;
    let implicit = pg_sys::CoercionContext::COERCION_IMPLICIT;
    // SAFETY: catalog look-up: any pair of OIDs is answered; `function` is a variable of this
    // frame.
    match unsafe { pg_sys::find_coercion_pathway(to, from, implicit, &mut function) } {
        COERCION_PATH_NONE => Conversion::None,
        COERCION_PATH_RELABELTYPE => Conversion::BuiltIn,
        COERCION_PATH_FUNC if function.to_u32() < pg_sys::FirstNormalObjectId => Conversion::BuiltIn,
        _ => Conversion::Foreign,
    }
}

/// As [`fit`], for a value that the user did not ask to be cast: the caller of an annotated
/// function trusts neither the owner of the table nor that of a type. `None`: a function of a user
/// would run, or a literal would have to be read.
///
/// # Safety
/// As for [`fit`].
pub unsafe fn fit_quietly(rel: pg_sys::Relation, attnum: i16, v: Value) -> Option<Value> {
    if v.2 == pg_sys::UNKNOWNOID {
        return None;
    }
    // SAFETY: `rel` is open and has column `attnum` (contract of this function). `getBaseType` is a
    // catalog look-up: any OID is answered.
    unsafe {
        let att = compat::attribute((*rel).rd_att, attnum as usize - 1);
        let (from, to) = (pg_sys::getBaseType(v.2), pg_sys::getBaseType(att.atttypid));
        if from == to || v.2 == pg_sys::InvalidOid || is_integer(from) && is_integer(to) {
            return Some(fit(rel, attnum, v));
        }
        match conversion(from, to) {
            Conversion::None => Some(v),
            Conversion::BuiltIn => Some(fit(rel, attnum, v)),
            Conversion::Foreign => None,
        }
    }
}

/// Evaluates an expression without variables.
///
/// # Safety
/// A valid expression without variables, whose parameters `params` has (null: there are none). An
/// ERROR unwinds.
pub unsafe fn evaluate(node: *mut pg_sys::Node, params: pg_sys::ParamListInfo) -> Value {
    // SAFETY: `node` has no variables, and `params` has its parameters (contract of this function).
    // The value is copied into the current context before its state is freed.
    unsafe {
        let typid = pg_sys::exprType(node);
        let estate = pg_sys::CreateExecutorState();
        (*estate).es_param_list_info = params;
        let context = pg_sys::CreateExprContext(estate);
        let state = pg_sys::ExecInitExprWithParams(pg_sys::copyObjectImpl(node.cast()).cast(), params);
        let mut null = false;
        let v = pg_sys::ExecEvalExpr(state, context, &mut null);
        let (mut len, mut byval) = (0, false);
        pg_sys::get_typlenbyval(typid, &mut len, &mut byval);
        let v = if null { v } else { crate::pg::copy(v, byval, len as i32) };
        pg_sys::FreeExecutorState(estate);
        (v, null, pg_sys::getBaseType(typid))
    }
}
