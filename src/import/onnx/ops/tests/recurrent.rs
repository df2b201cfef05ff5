use super::*;

/// The identity as activation of `n` gates.
fn linear(n: usize) -> Vec<(&'static str, A<'static>)> {
    const NAMES: &[&str] = &["Affine"; 6];
    const ONES: &[f32] = &[1.0; 6];
    const ZEROS: &[f32] = &[0.0; 6];
    vec![
        ("activations", A::Ss(&NAMES[..n])),
        ("activation_alpha", A::Fs(&ONES[..n])),
        ("activation_beta", A::Fs(&ZEROS[..n])),
    ]
}

fn rnn(
    attrs: &[(&'static str, A<'static>)],
    inputs: &[Tensor],
) -> Result<Vec<Tensor>, ImportError> {
    let inputs: Vec<_> = inputs.iter().cloned().map(Some).collect();
    run_all("RNN", 14, attrs, &inputs, 2)
}

#[test]
fn plain_layers_in_all_directions_and_layouts() {
    // h = 2 x + 3 h + 1.5.
    let (x, w, r, b) = (
        f32s(&[2, 1, 1], &[1.0, 10.0]),
        f32s(&[1, 1, 1], &[2.0]),
        f32s(&[1, 1, 1], &[3.0]),
        f32s(&[1, 2], &[1.0, 0.5]),
    );
    let y = rnn(&linear(1), &[x.clone(), w.clone(), r.clone(), b.clone()]).unwrap();
    close(&y[0], &[2, 1, 1, 1], &[3.5, 32.0]);
    close(&y[1], &[1, 1, 1], &[32.0]);
    let mut batch_first = linear(1);
    batch_first.push(("layout", A::I(1)));
    let turned = x.reshaped(&[1, 2, 1]).unwrap();
    let y = rnn(&batch_first, &[turned, w.clone(), r.clone(), b]).unwrap();
    close(&y[0], &[1, 2, 1, 1], &[3.5, 32.0]);
    close(&y[1], &[1, 1, 1], &[32.0]);
    let mut both = linear(2);
    both.push(("direction", A::S("bidirectional")));
    let twice = |t: &[f32], dims: &[usize]| f32s(dims, &[t, t].concat());
    let (w2, r2) = (twice(&[2.0], &[2, 1, 1]), twice(&[3.0], &[2, 1, 1]));
    let y = rnn(&both, &[x, w2, r2, twice(&[1.0, 0.5], &[2, 2])]).unwrap();
    close(&y[0], &[2, 2, 1, 1], &[3.5, 68.0, 32.0, 21.5]);
    close(&y[1], &[2, 1, 1], &[32.0, 68.0]);
}

#[test]
fn biases_of_the_reset_gate() {
    let inputs = [
        Some(f32s(&[1, 1, 1], &[1.0])),
        Some(f32s(&[1, 3, 1], &[0.5, 2.0, 1.0])),
        Some(f32s(&[1, 3, 1], &[0.0, 0.0, 3.0])),
        Some(f32s(&[1, 6], &[0.0, 0.0, 10.0, 0.0, 0.0, 1.0])),
        None,
        Some(f32s(&[1, 1, 1], &[4.0])),
    ];
    let y = run_all("GRU", 14, &linear(2), &inputs, 2).unwrap();
    close(&y[1], &[1, 1, 1], &[20.0]);
    let mut after = linear(2);
    after.push(("linear_before_reset", A::I(1)));
    let y = run_all("GRU", 14, &after, &inputs, 2).unwrap();
    close(&y[1], &[1, 1, 1], &[20.5]);
}

#[test]
fn gates_see_the_cell() {
    let inputs = [
        Some(f32s(&[1, 1, 1], &[1.0])),
        Some(f32s(&[1, 4, 1], &[2.0, 11.0, 3.0, 7.0])),
        Some(f32s(&[1, 4, 1], &[0.0; 4])),
        None,
        Some(Tensor::from_slice(&[1], &[1i32]).unwrap()),
        None,
        Some(f32s(&[1, 1, 1], &[5.0])),
        Some(f32s(&[1, 3], &[0.0, 0.5, 0.0])),
    ];
    let y = run_all("LSTM", 14, &linear(3), &inputs, 3).unwrap();
    close(&y[0], &[1, 1, 1, 1], &[739.5]);
    close(&y[2], &[1, 1, 1], &[29.0]);
}

#[test]
fn layers_that_do_not_fit_are_refused() {
    let one = f32s(&[1, 1, 1], &[1.0]);
    let error = |attrs: &[(&'static str, A<'static>)], inputs: &[Tensor]| {
        node_error(rnn(attrs, inputs).unwrap_err()).to_string()
    };
    let three = [one.clone(), one.clone(), one.clone()];
    assert!(error(&[("hidden_size", A::I(2))], &three).contains("hidden_size 2"));
    assert!(error(&[("activations", A::Ss(&["Cube"]))], &three).contains("Cube"));
    assert!(error(&[("activations", A::Ss(&["Tanh", "Tanh"]))], &three).contains("2 activations"));
    assert!(error(&[("direction", A::S("bidirectional"))], &three).contains("2 directions"));
    let wide = f32s(&[1, 1, 2], &[1.0, 1.0]);
    assert!(error(&[], &[wide.clone(), one.clone(), one.clone()]).contains("[1, 1, 2]"));
    assert!(rnn(&[], &[one.clone(), one.clone(), wide.clone()]).is_err());
    let flat = f32s(&[1, 1], &[1.0]);
    assert!(rnn(&[], &[flat, one.clone(), one.clone()]).is_err());
    assert!(error(&[], &[one.clone(), one.clone(), one.clone(), one.clone()]).contains("B"));
    let bias = f32s(&[1, 2], &[0.0; 2]);
    let long = Tensor::from_slice(&[1], &[2i32]).unwrap();
    assert!(rnn(&[], &[one.clone(), one.clone(), one.clone(), bias, long]).is_err());
}
