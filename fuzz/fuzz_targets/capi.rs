//! Loads bytes as a model of either kind through the C interface, and runs it: `cargo +nightly fuzz run capi`.
//! No status may be that of a fault of the library.
#![no_main]

use core::ffi::c_void;
use core::ptr;

use libfuzzer_sys::fuzz_target;
use tilewright::capi::*;

/// Most bytes of an input.
const MOST: usize = 1 << 20;

fn no_fault(status: tw_status) -> bool {
    // SAFETY: the line ends with a zero, and lives until the next failure.
    let line = unsafe { core::ffi::CStr::from_ptr(tw_last_error()) };
    assert_ne!(status, tw_status::TW_INTERNAL, "{line:?}");
    assert!(!line.to_bytes().contains(&b'\n'));
    status == tw_status::TW_OK
}

fuzz_target!(|data: &[u8]| {
    let options = tw_options {
        size: size_of::<tw_options>(),
        memory_limit: 64 << 20,
        isa: ptr::null(),
        threads: 1,
        profile: 0,
        context: 32,
        cache: 0,
        backend: ptr::null(),
    };
    let mut model = ptr::null_mut();
    // SAFETY: pointers are to values that live until the calls return, handles are freed once.
    unsafe {
        let bytes = data.as_ptr().cast::<c_void>();
        if !no_fault(tw_model_from_memory(bytes, data.len(), TW_BORROW, &options, &mut model)) {
            assert!(model.is_null());
            return;
        }
        match tw_model_kind_of(model.as_ref()) {
            tw_model_kind::TW_MODEL_NETWORK => network(model.as_ref()),
            _ => language(model.as_ref()),
        }
        tw_model_free(model);
    }
});

/// # Safety
/// The model is one.
unsafe fn network(model: Option<&tw_model>) {
    let mut session = ptr::null_mut();
    let zeros = vec![0u64; MOST / 8];
    // SAFETY: as above.
    unsafe {
        if !no_fault(tw_session_new(model, &mut session)) {
            return;
        }
        for i in 0..tw_model_input_count(model) {
            let mut info = core::mem::MaybeUninit::zeroed();
            assert!(no_fault(tw_model_input(model, i, info.as_mut_ptr())));
            let mut info: tw_tensor_info = info.assume_init();
            let rank = info.rank.max(0) as usize;
            let dims = &mut info.dims[..rank];
            dims.iter_mut().filter(|d| **d < 0).for_each(|d| *d = 3);
            const SIZES: [usize; 13] = [4, 2, 2, 8, 1, 1, 2, 2, 4, 4, 8, 8, 1];
            let size = SIZES[info.dtype as usize];
            let bytes = dims.iter().try_fold(size, |n, &d| n.checked_mul(d as usize));
            if let Some(bytes) = bytes.filter(|&b| b <= MOST) {
                let (dims, data) = (dims.as_ptr(), zeros.as_ptr().cast());
                let session = session.as_ref();
                no_fault(tw_session_set_input(session, i, info.dtype, rank, dims, data, bytes));
            }
        }
        if no_fault(tw_session_run(session.as_ref())) {
            for i in 0..tw_model_output_count(model) {
                let mut out = core::mem::MaybeUninit::zeroed();
                no_fault(tw_session_output(session.as_ref(), i, out.as_mut_ptr()));
            }
        }
        tw_session_free(session);
    }
}

/// # Safety
/// The model is one.
unsafe fn language(model: Option<&tw_model>) {
    let (mut llm, mut tokens, mut count) = (ptr::null_mut(), [0u32; 16], 0);
    // SAFETY: as above.
    unsafe {
        let text = b"a b";
        let found =
            tw_tokenize(model, text.as_ptr().cast(), 3, 0, tokens.as_mut_ptr(), 16, &mut count);
        if no_fault(found) && no_fault(tw_llm_new(model, &mut llm)) {
            no_fault(tw_llm_eval(llm.as_ref(), tokens.as_ptr(), count));
        }
        tw_llm_free(llm);
    }
}
