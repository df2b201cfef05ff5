//! Operators that find places, or read at computed ones.

use crate::net::{A, check, noise};

#[test]
fn positions_of_maxima() {
    let ways: [[&[i64]; 4]; 5] = [
        [&[2, 2], &[2, 2], &[0, 0, 0, 0], &[1, 1]],
        [&[3, 3], &[1, 1], &[1, 1, 1, 1], &[1, 1]],
        [&[3, 2], &[2, 2], &[1, 0, 2, 1], &[1, 3]],
        [&[2, 3], &[1, 3], &[0, 2, 1, 1], &[2, 1]],
        [&[1, 4], &[3, 2], &[0, 3, 0, 3], &[1, 2]],
    ];
    for (i, [size, strides, pads, dilations]) in ways.into_iter().enumerate() {
        check(&format!("positions {i}"), &[2, 3, 9, 21], |net| {
            // Whole numbers, of which many are equal.
            let few = net.floats(&[2.0]);
            let x = net.node("Mul", &["x", &few], &[]);
            let x = net.node("Round", &[&x], &[]);
            let attributes = [
                ("kernel_shape", A::Is(size)),
                ("strides", A::Is(strides)),
                ("pads", A::Is(pads)),
                ("dilations", A::Is(dilations)),
            ];
            net.node("MaxPool", &[&x], &attributes);
            net.graph.node.last_mut().unwrap().output.push("at".into());
            net.node("Cast", &["at"], &[("to", A::I(1))]);
        });
    }
    check("positions along a line", &[1, 3, 14], |net| {
        let least = net.floats(&[f32::NEG_INFINITY]);
        let high = net.floats(&[0.3]);
        let yes = net.node("Greater", &["x", &high], &[]);
        let x = net.node("Where", &[&yes, "x", &least], &[]);
        net.node("MaxPool", &[&x], &[("kernel_shape", A::Is(&[2])), ("strides", A::Is(&[2]))]);
        net.graph.node.last_mut().unwrap().output.push("at".into());
        net.node("Cast", &["at"], &[("to", A::I(1))]);
    });
}

#[test]
fn elements_at_computed_places() {
    for c in [3, 18] {
        for mode in ["linear", "nearest", "cubic"] {
            for padding in ["zeros", "border", "reflection"] {
                check(&format!("GridSample {mode} {padding}"), &[2, c, 6, 7], |net| {
                    // A third of the places are outside.
                    let grid = net.constant(
                        1,
                        &[2, 5, 9, 2],
                        bytemuck::cast_slice(
                            &noise(&[180], 7)
                                .as_slice::<f32>()
                                .unwrap()
                                .iter()
                                .map(|v| v * 1.4)
                                .collect::<Vec<_>>(),
                        ),
                    );
                    let attributes = [("mode", A::S(mode)), ("padding_mode", A::S(padding))];
                    let x = net.conv("x", c, c);
                    net.node("GridSample", &[&x, &grid], &attributes);
                });
            }
        }
    }
    for (c, samples) in [(3, 2), (18, 3), (18, 7)] {
        check(&format!("RoiAlign {c} {samples}"), &[2, c, 9, 11], |net| {
            // The last reaches out of the picture, the second is empty.
            let boxes = [[0.3f32, 1.2, 8.5, 7.1], [3.0, 3.0, 3.0, 3.0], [-4.0, 5.0, 14.0, 20.0]];
            let boxes = net.constant(1, &[3, 4], bytemuck::cast_slice(&boxes));
            let pictures = net.ints(&[1, 0, 1]);
            let attributes = [
                ("output_height", A::I(3)),
                ("output_width", A::I(6)),
                ("sampling_ratio", A::I(samples)),
            ];
            let x = net.conv("x", c, c);
            net.node("RoiAlign", &[&x, &boxes, &pictures], &attributes);
        });
    }
    check("GridSample of a volume", &[1, 3, 4, 5, 6], |net| {
        let grid = net.weights(&[1, 2, 3, 4, 3]);
        net.node("GridSample", &["x", &grid], &[("align_corners", A::I(1))]);
    });
    // Channels, groups, groups of offsets: blocks of channels that have one of each, and others.
    for (c, groups, bent) in [(32, 1, 2), (32, 2, 1), (6, 2, 3), (16, 1, 1), (24, 1, 1)] {
        for mask in [false, true] {
            check(&format!("DeformConv {c} {groups} {bent}"), &[2, c, 6, 7], |net| {
                let w = net.weights(&[8, c / groups, 3, 2]);
                let bias = net.weights(&[8]);
                let (x, y) = (net.conv("x", c, c), net.conv("x", c, 12 * bent));
                let attributes = [
                    ("group", A::I(groups as i64)),
                    ("offset_group", A::I(bent as i64)),
                    ("pads", A::Is(&[1, 1, 1, 0])),
                ];
                let offsets = net.node("Mul", &[&y, "three"], &[]);
                net.constant(1, &[], bytemuck::cast_slice(&[3.0f32]));
                net.graph.initializer.last_mut().unwrap().name = Some("three".into());
                let part = net.conv("x", c, 6 * bent);
                let inputs = [&x, &w, &offsets, &bias, &part].map(String::as_str);
                let inputs = if mask { &inputs[..] } else { &inputs[..4] };
                net.node("DeformConv", inputs, &attributes);
            });
        }
    }
}
