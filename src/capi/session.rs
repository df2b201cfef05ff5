//! Sessions of networks.

use core::ffi::{c_char, c_void};
use std::ffi::CString;
use std::sync::Arc;

use tilewright_c_kernels::tw_status;

use super::call::{call, copy_out, given, put, slice, text};
use super::handle::{Exclusive, free, into_handle};
use super::log::{tell, tw_log_level};
use super::model::{Kind, given_out, nth, tw_model};
use super::status::Failure;
use super::tensor::{self, TW_MAX_RANK, dtype, number, tw_tensor};
use crate::{Dim, Model, Session, Tensor};

/// Runs a network. Sessions of one model share its weights and may run at the same time; one session
/// does one thing at a time.
pub struct tw_session(Exclusive<Inner>);

struct Inner {
    model: Arc<Model>,
    session: Session,
    inputs: Vec<Input>,
    /// Where outputs are copied to.
    bound: Vec<Option<Buffer>>,
    results: Vec<Tensor>,
    /// Whether `results` are those of a run that succeeded.
    ran: bool,
    rows: Vec<Row>,
}

#[derive(Default)]
struct Input {
    value: Option<Tensor>,
    /// Where it is read from at each run.
    source: Option<Buffer>,
}

/// Memory of the caller.
#[derive(Clone, Copy)]
struct Buffer {
    data: *mut u8,
    bytes: usize,
}

// SAFETY: whoever binds memory promises that it stays, and that the thread that runs may use it.
unsafe impl Send for Buffer {}

/// A profile row with its strings.
struct Row {
    name: CString,
    op: CString,
    kernel: CString,
    seconds: f64,
    calls: u64,
    macs: u64,
}

/// Time spent in one operation.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct tw_profile_row {
    /// The tensor it computes.
    pub name: *const c_char,
    /// The operator.
    pub op: *const c_char,
    /// The kernel.
    pub kernel: *const c_char,
    /// Seconds over all calls.
    pub seconds: f64,
    /// Calls.
    pub calls: u64,
    /// Multiply-adds of one call.
    pub macs: u64,
}

impl Inner {
    /// Checks type and extents of a value for an input, and gives them.
    fn check(
        &self,
        index: usize,
        kind: i32,
        extents: &[i64],
        bytes: usize,
    ) -> Result<(crate::DType, Vec<usize>), Failure> {
        let info = nth(self.model.inputs(), index, "inputs")?;
        let (expected, given) = (info.dtype, dtype(kind)?);
        let wrong = |status| {
            let message = format!(
                "input {:?}: expected {expected} {}, given {given} {extents:?}",
                info.name,
                info.shape_text(),
            );
            Failure::new(status, message)
        };
        if expected != given {
            return Err(wrong(tw_status::TW_TYPE));
        }
        let dims: Option<Vec<usize>> = extents.iter().map(|&d| usize::try_from(d).ok()).collect();
        let dims = dims.ok_or_else(|| wrong(tw_status::TW_SHAPE))?;
        if let Some(declared) = &info.dims {
            let fits = |(d, n): (&Dim, &usize)| !matches!(d, Dim::Fixed(m) if m != n);
            if declared.len() != dims.len() || !declared.iter().zip(&dims).all(fits) {
                return Err(wrong(tw_status::TW_SHAPE));
            }
        }
        let elements = dims.iter().try_fold(1usize, |n, &d| n.checked_mul(d));
        let needed = elements.and_then(|n| given.bytes_of(n));
        if needed != Some(bytes) {
            let message = format!(
                "input {:?}: {given} {extents:?} has {} bytes, given {bytes}",
                info.name,
                needed.map_or_else(|| "too many".to_owned(), |n| n.to_string()),
            );
            return Err(Failure::new(tw_status::TW_SHAPE, message));
        }
        Ok((given, dims))
    }

    /// A tensor of an input with these extents: the one there is, if it can be written again.
    fn place(
        &mut self,
        index: usize,
        dtype: crate::DType,
        dims: &[usize],
    ) -> Result<&mut Tensor, Failure> {
        let slot = &mut self.inputs[index].value;
        let fits = slot
            .as_mut()
            .is_some_and(|t| t.dtype() == dtype && t.dims() == dims && t.bytes_mut().is_some());
        if !fits {
            *slot = Some(Tensor::zeros(dtype, dims).map_err(crate::Error::from)?);
        }
        slot.as_mut().ok_or_else(|| Failure::new(tw_status::TW_INTERNAL, "no tensor"))
    }

    fn run(&mut self) -> Result<(), Failure> {
        self.ran = false;
        for (input, info) in self.inputs.iter_mut().zip(self.model.inputs()) {
            let Some(value) = &mut input.value else {
                let message = format!("input {:?} was never set", info.name);
                return Err(Failure::new(tw_status::TW_STATE, message));
            };
            if let (Some(source), Some(to)) = (input.source, value.bytes_mut()) {
                // SAFETY: who bound the memory promised that it stays readable; the tensor was made
                // for as many bytes, and is our own.
                unsafe { core::ptr::copy_nonoverlapping(source.data, to.as_mut_ptr(), to.len()) };
            }
        }
        let given: Vec<&Tensor> = self.inputs.iter().filter_map(|i| i.value.as_ref()).collect();
        self.session.run_into(&given, &mut self.results)?;
        for (i, (bound, result)) in self.bound.iter().zip(&self.results).enumerate() {
            if let Some(small) = bound.filter(|b| b.bytes < result.bytes().len()) {
                let message = format!(
                    "output {:?} has {} bytes, its buffer {}",
                    self.model.outputs()[i].name,
                    result.bytes().len(),
                    small.bytes,
                );
                return Err(Failure::new(tw_status::TW_BUFFER_TOO_SMALL, message));
            }
        }
        for (bound, result) in self.bound.iter().zip(&self.results) {
            let from = result.bytes();
            if let Some(to) = bound {
                // SAFETY: who bound the memory promised that it stays writable; there is room.
                unsafe { core::ptr::copy_nonoverlapping(from.as_ptr(), to.data, from.len()) };
            }
        }
        self.ran = true;
        Ok(())
    }
}

/// Makes a session. Its threads sleep while it does not run.
///
/// Gives `TW_INVALID_ARGUMENT` for a language model, `TW_UNSUPPORTED` for an instruction set that the
/// machine lacks.
///
/// # Safety
/// `model` is NULL or a model; `out` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_session_new(
    model: Option<&tw_model>,
    out: *mut *mut tw_session,
) -> tw_status {
    call(|| {
        given_out(out)?;
        let handle = given(model, "model")?;
        #[cfg_attr(not(feature = "llm"), allow(irrefutable_let_patterns, reason = "one kind"))]
        let Kind::Network { model, options } = &handle.kind else {
            return Err(Failure::argument(
                "a language model runs in a tw_llm, not in a tw_session",
            ));
        };
        let session = Session::new(model.clone(), options.session.clone())?;
        if let Some(problem) = session.table_problem() {
            tell(tw_log_level::TW_LOG_WARNING, || format!("{problem}; it is not used"));
        }
        tell(tw_log_level::TW_LOG_INFO, || {
            format!("a session: {}, {} threads", session.isa(), session.threads())
        });
        let inner = Inner {
            model: model.clone(),
            session,
            inputs: model.inputs().iter().map(|_| Input::default()).collect(),
            bound: vec![None; model.outputs().len()],
            results: Vec::new(),
            ran: false,
            rows: Vec::new(),
        };
        // SAFETY: as the caller promises.
        unsafe { put(out, "out", into_handle(tw_session(Exclusive::new(inner)))) }
    })
}

/// Frees a session with its results. NULL is nothing to do.
///
/// No other call may use it then; any thread may be the one that frees it.
///
/// # Safety
/// `session` is NULL or a session that is not freed yet, and no other call uses it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_session_free(session: *mut tw_session) {
    // SAFETY: as the caller promises.
    unsafe { free(session) }
}

/// The index of the input called `name`, for the functions that want one.
///
/// Gives `TW_NOT_FOUND`.
///
/// Any thread may call it, several at a time.
///
/// # Safety
/// `model` is NULL or a model; `name` is NULL or ends with a zero byte; `out` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_model_find_input(
    model: Option<&tw_model>,
    name: *const c_char,
    out: *mut usize,
) -> tw_status {
    call(|| {
        let model = given(model, "model")?;
        // SAFETY: as the caller promises.
        let name = unsafe { text(name, "name") }?;
        let found = model.inputs.iter().position(|i| i.name.to_bytes() == name.as_bytes());
        let index = found.ok_or_else(|| {
            let known: Vec<_> = model.inputs.iter().map(|i| i.name.to_string_lossy()).collect();
            let message = format!("the model has no input {name:?} (it has: {})", known.join(", "));
            Failure::new(tw_status::TW_NOT_FOUND, message)
        })?;
        // SAFETY: as the caller promises.
        unsafe { put(out, "out", index) }
    })
}

/// Sets input `index` to a copy of `bytes` bytes at `data`: contiguous elements of type `dtype` (a
/// `tw_dtype`) and `rank` extents `dims`, slowest first. It stays until it is set again.
///
/// Gives `TW_NOT_FOUND` for an index past the end; `TW_TYPE` and `TW_SHAPE`, with what was expected
/// and what was given, if the value does not fit the model or `bytes` not the extents.
///
/// Any thread may call it; while another call works on the session it gives `TW_BUSY` and does nothing.
///
/// # Safety
/// `session` is NULL or a session; `dims` is NULL or readable for `rank` numbers, `data` for `bytes`
/// bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_session_set_input(
    session: Option<&tw_session>,
    index: usize,
    dtype: i32,
    rank: usize,
    dims: *const i64,
    data: *const c_void,
    bytes: usize,
) -> tw_status {
    call(|| {
        let mut inner = given(session, "session")?.0.take()?;
        check_rank(rank)?;
        // SAFETY: as the caller promises.
        let (dims, data) =
            unsafe { (slice(dims, rank, "dims")?, slice(data.cast::<u8>(), bytes, "data")?) };
        let (dtype, dims) = inner.check(index, dtype, dims, bytes)?;
        let to = inner.place(index, dtype, &dims)?;
        to.bytes_mut().unwrap_or_default().copy_from_slice(data);
        inner.inputs[index].source = None;
        Ok(())
    })
}

/// As `tw_session_set_input`, but each run reads `data` anew. It must stay readable until the input
/// is set again or the session freed, and may be written between runs.
///
/// Any thread may call it; while another call works on the session it gives `TW_BUSY` and does nothing.
///
/// # Safety
/// As `tw_session_set_input`, and `data` as long as said above.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_session_bind_input(
    session: Option<&tw_session>,
    index: usize,
    dtype: i32,
    rank: usize,
    dims: *const i64,
    data: *const c_void,
    bytes: usize,
) -> tw_status {
    call(|| {
        let mut inner = given(session, "session")?.0.take()?;
        check_rank(rank)?;
        // SAFETY: as the caller promises.
        let dims = unsafe { slice(dims, rank, "dims")? };
        // SAFETY: as the caller promises.
        unsafe { slice(data.cast::<u8>(), bytes, "data")? };
        let (dtype, dims) = inner.check(index, dtype, dims, bytes)?;
        inner.place(index, dtype, &dims)?;
        let source = Buffer { data: data.cast_mut().cast(), bytes };
        inner.inputs[index].source = Some(source).filter(|s| s.bytes > 0);
        Ok(())
    })
}

fn check_rank(rank: usize) -> Result<(), Failure> {
    if rank <= TW_MAX_RANK {
        return Ok(());
    }
    let message = format!("{rank} extents, at most {TW_MAX_RANK} are possible");
    Err(Failure::new(tw_status::TW_SHAPE, message))
}

/// Each run that succeeds copies output `index` to `data` too; NULL ends that. If the output of a run
/// is larger than `bytes`, the run gives `TW_BUFFER_TOO_SMALL` and writes to no bound buffer.
///
/// Gives `TW_NOT_FOUND` for an index past the end.
///
/// Any thread may call it; while another call works on the session it gives `TW_BUSY` and does nothing.
///
/// # Safety
/// `session` is NULL or a session; `data` is NULL or writable for `bytes` bytes until it is bound
/// anew or the session freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_session_bind_output(
    session: Option<&tw_session>,
    index: usize,
    data: *mut c_void,
    bytes: usize,
) -> tw_status {
    call(|| {
        let mut inner = given(session, "session")?.0.take()?;
        nth(&inner.bound, index, "outputs")?;
        inner.bound[index] = (!data.is_null()).then_some(Buffer { data: data.cast(), bytes });
        Ok(())
    })
}

/// Runs the network on its inputs. Results of the run before go.
///
/// Gives `TW_STATE` if an input was never set, `TW_SHAPE` if the inputs do not fit each other,
/// `TW_OUT_OF_MEMORY`, `TW_UNSUPPORTED`, `TW_BUFFER_TOO_SMALL`, `TW_BUSY`.
///
/// Any thread may call it; while another call works on the session it gives `TW_BUSY` and does nothing.
///
/// # Safety
/// `session` is NULL or a session; memory bound to it is as it was promised.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_session_run(session: Option<&tw_session>) -> tw_status {
    call(|| given(session, "session")?.0.take()?.run())
}

/// Output `index` of the last run: type, extents and elements, which are valid until the next run or
/// until the session is freed.
///
/// Gives `TW_STATE` if there was no run or the last one failed, `TW_NOT_FOUND` for an index past the
/// end, `TW_BUSY`.
///
/// Any thread may call it; while another call works on the session it gives `TW_BUSY` and does nothing.
///
/// # Safety
/// `session` is NULL or a session; `out` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_session_output(
    session: Option<&tw_session>,
    index: usize,
    out: *mut tw_tensor,
) -> tw_status {
    call(|| {
        let inner = given(session, "session")?.0.take()?;
        nth(inner.model.outputs(), index, "outputs")?;
        if !inner.ran {
            return Err(Failure::new(
                tw_status::TW_STATE,
                "no run has succeeded since the inputs were set",
            ));
        }
        let value = nth(&inner.results, index, "results")?;
        let unsupported = |what: &str| {
            Failure::new(
                tw_status::TW_UNSUPPORTED,
                format!("the output has {what} that C programs cannot be told"),
            )
        };
        let dtype = number(value.dtype()).ok_or_else(|| unsupported("a type"))?;
        let extents = value.dims().into_iter().map(|d| i64::try_from(d).unwrap_or(i64::MAX));
        let (rank, dims) = tensor::dims(extents).ok_or_else(|| unsupported("extents"))?;
        let (data, bytes) = (value.bytes().as_ptr().cast(), value.bytes().len());
        // SAFETY: as the caller promises.
        unsafe { put(out, "out", tw_tensor { dtype, rank, dims, data, bytes }) }
    })
}

/// Times of the operations, of a session whose model was loaded with `profile`: `*count` becomes
/// their number, and `rows`, if it has room for `capacity` of at least as many, the times. Strings in
/// them live until the next call of this function or until the session is freed.
///
/// Gives `TW_BUFFER_TOO_SMALL` (with `*count` set), `TW_BUSY`.
///
/// Any thread may call it; while another call works on the session it gives `TW_BUSY` and does nothing.
///
/// # Safety
/// `session` is NULL or a session; `rows` is NULL or writable for `capacity` rows, `count` NULL or
/// writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_session_profile(
    session: Option<&tw_session>,
    rows: *mut tw_profile_row,
    capacity: usize,
    count: *mut usize,
) -> tw_status {
    call(|| {
        let mut inner = given(session, "session")?.0.take()?;
        let text = |s: String| CString::new(s.replace('\0', " ")).unwrap_or_default();
        inner.rows = inner
            .session
            .profile()
            .into_iter()
            .map(|row| Row {
                name: text(row.name),
                op: text(row.op),
                kernel: text(row.kernel),
                seconds: row.seconds,
                calls: row.calls,
                macs: row.macs,
            })
            .collect();
        let found: Vec<_> = inner
            .rows
            .iter()
            .map(|row| tw_profile_row {
                name: row.name.as_ptr(),
                op: row.op.as_ptr(),
                kernel: row.kernel.as_ptr(),
                seconds: row.seconds,
                calls: row.calls,
                macs: row.macs,
            })
            .collect();
        // SAFETY: as the caller promises.
        unsafe { copy_out(&found, rows, capacity, count) }
    })
}
