use super::*;

#[test]
fn layers_and_their_statistics() {
    let x = f32s(&[1, 2, 2], &[1.0, 3.0, 7.0, 3.0]);
    let (scale, bias) = (f32s(&[2], &[2.0, 3.0]), f32s(&[2], &[10.0, 20.0]));
    let exact = [("epsilon", A::F(0.0))];
    let inputs = [x.clone(), scale.clone(), bias.clone()].map(Some);
    let y = run_all("LayerNormalization", 17, &exact, &inputs, 3).unwrap();
    close(&y[0], &[1, 2, 2], &[8.0, 23.0, 12.0, 17.0]);
    close(&y[1], &[1, 2, 1], &[2.0, 5.0]);
    close(&y[2], &[1, 2, 1], &[1.0, 0.5]);
    // All of it is one row; scale and bias are broadcast.
    let all = [("axis", A::I(-3)), ("epsilon", A::F(0.25))];
    let y = run("LayerNormalization", 17, &all, &[x.clone(), scale.clone(), bias]).unwrap();
    let r = 1.0 / 5f32.sqrt();
    let want = [10.0 - 5.0 * r, 20.0 - 1.5 * r, 10.0 + 7.0 * r, 20.0 - 1.5 * r];
    close(&y, &[1, 2, 2], &want);
    let root = [("axis", A::I(1)), ("epsilon", A::F(0.0))];
    let square = f32s(&[1, 2, 2], &[1.0, 3.0, 3.0, 9.0]);
    let y = run("RMSNormalization", 23, &root, &[square, f32s(&[2, 2], &[5.0, 5.0, 5.0, 0.0])]);
    close(&y.unwrap(), &[1, 2, 2], &[1.0, 3.0, 3.0, 0.0]);
    let y = run(
        "SimplifiedLayerNormalization",
        13,
        &[("epsilon", A::F(8.0))],
        &[x.clone(), scale.clone()],
    );
    let want = [2.0 / 13f32.sqrt(), 9.0 / 13f32.sqrt(), 14.0 / 37f32.sqrt(), 9.0 / 37f32.sqrt()];
    close(&y.unwrap(), &[1, 2, 2], &want);
    // As ONNX Runtime writes it into models of earlier operator sets.
    assert!(run("LayerNormalization", 14, &[], &[x.clone(), scale.clone()]).is_ok());
    let outside = [("axis", A::I(3))];
    assert!(run("LayerNormalization", 17, &outside, &[x.clone(), scale.clone()]).is_err());
    // A scale that would make the result larger than the input.
    let wide = f32s(&[3, 1, 2, 2], &[1.0; 12]);
    assert!(run("LayerNormalization", 17, &[], &[x.clone(), wide]).is_err());
    let negative = [("epsilon", A::F(-1.0))];
    assert!(run("LayerNormalization", 17, &negative, &[x, scale]).is_err());
}

#[test]
fn groups_of_channels() {
    let x = f32s(&[1, 4, 2], &[1.0, 3.0, 1.0, 3.0, 5.0, 7.0, 7.0, 5.0]);
    let (four, zeros) = (f32s(&[4], &[1.0, 2.0, 3.0, 4.0]), f32s(&[4], &[0.0; 4]));
    let instance = run(
        "InstanceNormalization",
        7,
        &[("epsilon", A::F(0.0))],
        &[x.clone(), four.clone(), zeros.clone()],
    );
    let want = [-1.0, 1.0, -2.0, 2.0, -3.0, 3.0, 4.0, -4.0];
    close(&instance.unwrap(), &[1, 4, 2], &want);
    let groups = [("num_groups", A::I(2)), ("epsilon", A::F(0.0))];
    let two = f32s(&[2], &[3.0, 2.0]);
    // Scale and bias per group, later per channel.
    let old = run("GroupNormalization", 18, &groups, &[x.clone(), two.clone(), two.clone()]);
    close(&old.unwrap(), &[1, 4, 2], &[0.0, 6.0, 0.0, 6.0, 0.0, 4.0, 4.0, 0.0]);
    let new = run("GroupNormalization", 21, &groups, &[x.clone(), four, zeros]);
    close(&new.unwrap(), &[1, 4, 2], &want);
    assert!(
        run("GroupNormalization", 21, &groups, &[x.clone(), two.clone(), two.clone()]).is_err()
    );
    for wrong in [0, 3, -1, i64::MAX] {
        let groups = [("num_groups", A::I(wrong))];
        assert!(
            run("GroupNormalization", 18, &groups, &[x.clone(), two.clone(), two.clone()]).is_err()
        );
    }
    let flat = f32s(&[2], &[1.0, 2.0]);
    assert!(run("InstanceNormalization", 7, &[], &[flat.clone(), flat.clone(), flat]).is_err());
}

#[test]
fn whole_batches_vectors_and_neighbours() {
    let x = f32s(&[2, 2, 1, 1], &[1.0, 10.0, 3.0, 10.0]);
    let y = run("MeanVarianceNormalization", 13, &[], &[x.clone()]).unwrap();
    close(&y, &[2, 2, 1, 1], &[-1.0, 0.0, 1.0, 0.0]);
    let y = run("MeanVarianceNormalization", 9, &[("axes", A::Is(&[-3]))], &[x]).unwrap();
    close(&y, &[2, 2, 1, 1], &[-1.0, 1.0, -1.0, 1.0]);
    let x = f32s(&[2, 2], &[3.0, -4.0, 0.0, 0.0]);
    let y = run("LpNormalization", 7, &[], &[x.clone()]).unwrap();
    close(&y, &[2, 2], &[0.6, -0.8, 0.0, 0.0]);
    let one = [("p", A::I(1)), ("axis", A::I(0))];
    close(
        &run("LpNormalization", 22, &one, &[x.clone()]).unwrap(),
        &[2, 2],
        &[1.0, -1.0, 0.0, 0.0],
    );
    assert!(run("LpNormalization", 22, &[("p", A::I(3))], &[x]).is_err());
    let x = f32s(&[1, 5, 1], &[1.0, 2.0, 3.0, 4.0, 5.0]);
    for size in [1, 2, 3, 4, 5, 6, 7, 1 << 40] {
        let wide = [("size", A::I(size)), ("alpha", A::F(size as f32)), ("beta", A::F(1.0))];
        let y = run("LRN", 13, &wide, &[x.clone()]).unwrap();
        let want: Vec<f32> = (0..5i64)
            .map(|c| {
                let near = (c - (size - 1) / 2).max(0)..=(c + size / 2).min(4);
                (c + 1) as f32 / (1.0 + near.map(|i| ((i + 1) * (i + 1)) as f32).sum::<f32>())
            })
            .collect();
        close(&y, &[1, 5, 1], &want);
    }
    assert!(run("LRN", 13, &[("size", A::I(0))], &[x]).is_err());
}
