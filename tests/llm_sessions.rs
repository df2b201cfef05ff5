//! Sessions of one model that begin at the same time.

#![cfg(feature = "llm")]

use std::path::Path;
use std::sync::{Arc, Mutex};

use tilewright::llm::{Llm, LlmOptions, Progress};

#[test]
fn first_sessions_pack_the_weights_together_once() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/manual/manual.gguf");
    let told = Arc::new(Mutex::new(Vec::new()));
    let tell = told.clone();
    let progress = Progress::new(move |done, all| tell.lock().unwrap().push((done, all)));
    let options = LlmOptions { threads: Some(2), progress: Some(progress), ..Default::default() };
    let llm = Llm::load(path, options).unwrap();
    let logits: Vec<Vec<f32>> = std::thread::scope(|scope| {
        let begin = || llm.session().unwrap().eval(&[1, 2, 3]).unwrap().to_vec();
        let sessions: Vec<_> = (0..3).map(|_| scope.spawn(begin)).collect();
        sessions.into_iter().map(|s| s.join().unwrap()).collect()
    });
    assert!(logits.iter().all(|l| l == &logits[0]));
    let told = told.lock().unwrap();
    assert!(told.windows(2).all(|w| w[0].0 < w[1].0), "{told:?}");
    assert_eq!(told.last().map(|(done, all)| done == all), Some(true), "{told:?}");
}

#[test]
fn repacking_may_wait_for_a_short_prompt_and_changes_no_result() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/manual/manual.gguf");
    let text = |repack_later: bool, prompt: &[u32]| {
        let packed = Arc::new(Mutex::new(0));
        let tell = packed.clone();
        let progress = Progress::new(move |done, _| *tell.lock().unwrap() = done);
        let options = LlmOptions { repack_later, progress: Some(progress), ..Default::default() };
        let mut session = Llm::load(&path, options).unwrap().session().unwrap();
        let mut all = vec![session.prompt(prompt).unwrap().to_vec()];
        let at_prompt = *packed.lock().unwrap();
        all.extend([5, 7].map(|token| session.eval(&[token]).unwrap().to_vec()));
        let then = *packed.lock().unwrap();
        (all, at_prompt, then)
    };
    let prompts = [vec![1, 2, 3, 4, 5], (0..200).map(|i| i % 50 + 1).collect(), vec![9]];
    for (prompt, waits) in prompts.iter().zip([true, false, false]) {
        let (expected, packed, _) = text(false, prompt);
        assert!(packed > 0);
        let (found, at_prompt, then) = text(true, prompt);
        assert!(found == expected, "other logits behind {} tokens", prompt.len());
        assert_eq!((at_prompt == 0, then), (waits, packed), "{} tokens", prompt.len());
    }
}
