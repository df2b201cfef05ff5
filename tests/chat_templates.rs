//! Chat templates written as those of real models are.

#![cfg(feature = "llm")]

use tilewright::llm::tokenizer::{Tokenizer, Vocabulary};
use tilewright::llm::{ChatTemplate, Message, TemplateError};

fn tokenizer() -> Tokenizer {
    let tokens: [&[u8]; 5] = [b"<unk>", b"<s>", b"</s>", b"a", "\u{2581}".as_bytes()];
    let vocabulary = Vocabulary {
        model: "llama",
        tokens: tokens.to_vec(),
        scores: Some(vec![0.0; 5]),
        types: Some(vec![2, 3, 3, 1, 1]),
        ..Vocabulary::default()
    };
    Tokenizer::new(&vocabulary).unwrap()
}

fn render(source: &str, messages: &[(&str, &str)]) -> Result<String, TemplateError> {
    let messages: Vec<Message> = messages.iter().map(|(r, c)| Message::new(*r, *c)).collect();
    ChatTemplate::new(source, &tokenizer())?.render(&messages)
}

const TALK: [(&str, &str); 3] = [("user", " Hi "), ("assistant", "Yes?"), ("user", "Bye")];

#[test]
fn a_template_with_headers_and_a_date() {
    let source = "\
{{- bos_token }}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}
        {%- set date_string = strftime_now(\"%d %b %Y\") %}
    {%- else %}
        {%- set date_string = \"26 Jul 2024\" %}
    {%- endif %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = \"\" %}
{%- endif %}
{%- if tools is not none %}{{ raise_exception('no tools') }}{%- endif %}
{{- \"<|h|>system<|/h|>\\n\\n\" }}
{{- \"Today: \" + date_string + \"\\n\" }}
{{- system_message }}
{%- for message in messages %}
    {{- '<|h|>' + message['role'] + '<|/h|>\\n\\n'+ message['content'] | trim + '<|eot|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|h|>assistant<|/h|>\\n\\n' }}
{%- endif %}
";
    let text = render(source, &[("system", "Be brief. "), TALK[0]]).unwrap();
    let (before, after) = text.split_once("Today: ").unwrap();
    assert_eq!(before, "<s><|h|>system<|/h|>\n\n");
    let (date, after) = after.split_once('\n').unwrap();
    assert!(date.len() == 11 && date.ends_with(|c: char| c.is_ascii_digit()), "{date}");
    assert_eq!(after, "Be brief.<|h|>user<|/h|>\n\nHi<|eot|><|h|>assistant<|/h|>\n\n");
}

#[test]
fn a_template_that_wants_turns() {
    let source = "\
{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}\
{% for message in messages %}\
{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}\
{% if (message['role'] == 'assistant') %}{% set role = 'model' %}{% else %}{% set role = message['role'] %}{% endif %}
{{ '<turn>' + role + '\n' + message['content'] | trim + '</turn>\n' }}{% endfor %}\
{% if add_generation_prompt %}{{'<turn>model\n'}}{% endif %}";
    let expected =
        "<s><turn>user\nHi</turn>\n<turn>model\nYes?</turn>\n<turn>user\nBye</turn>\n<turn>model\n";
    assert_eq!(render(source, &TALK).unwrap(), expected);
    let refused = render(source, &[("system", "x")]).unwrap_err();
    assert_eq!(refused, TemplateError::Refused("System role not supported".into()));
    let long = render("{{ raise_exception('é' * 9999) }}", &TALK).unwrap_err();
    assert_eq!(long, TemplateError::Refused("é".repeat(400) + "..."));
    assert_eq!(
        render(source, &[TALK[1]]).unwrap_err().to_string(),
        "the model's chat template refuses this: roles must alternate"
    );
}

#[test]
fn methods_namespaces_loop_controls_and_macros() {
    let source = "\
{%- set ns = namespace(last='', n=0) -%}
{%- macro shout(x) -%}{{ x.upper() }}{%- endmacro -%}
{%- for m in messages[::-1] -%}
    {%- if m.role == 'assistant' %}{% continue %}{% endif -%}
    {%- set ns.n = ns.n + 1 -%}
    {%- set ns.last = m.content.strip().split(' ')[-1] -%}
    {%- if ns.n > 1 %}{% break %}{% endif -%}
{%- endfor -%}
{%- generation -%}x{%- endgeneration -%}
{{ shout(ns.last) }} {{ 'abc'.startswith('a') }} {{ {'a': 1}.items() | length }} \
{{- ' <b>' | tojson }} {{ {'k': ['é\\n', 1, true, none]} | tojson }}{{ [1] | tojson(indent=2) }}"
        .replace("{%- generation -%}", "{% generation %}")
        .replace("{%- endgeneration -%}", "{% endgeneration %}");
    let text = render(&source, &TALK).unwrap();
    assert_eq!(text, "xHI True 1\" <b>\" {\"k\": [\"é\\n\", 1, true, null]}[\n  1\n]");
}

/// Templates for tools ask whether there are any before they count them.
#[test]
fn what_has_elements_is_what_jinja_says() {
    let source = "\
{%- if tools is iterable and tools | length > 0 %}tools{% endif -%}
{{ tools is iterable }} {{ gone is iterable }} {{ 'a' is iterable }} {{ messages is iterable }} {{ 1 is iterable }}
{{ tools is sequence }} {{ 'a' is sequence }} {{ messages is sequence }} {{ messages[0] is sequence }} {{ 1 is sequence }}";
    let expected = "False True True True False\nFalse True True True False";
    assert_eq!(render(source, &TALK).unwrap(), expected);
}

#[test]
fn methods_of_texts_are_pythons() {
    for (source, expected) in [
        ("' a b  c '.split()", "['a', 'b', 'c']"),
        ("' a b  c '.split(none, 1)", "['a', 'b  c ']"),
        ("' a b  c '.rsplit(none, 1)", "[' a b', 'c']"),
        ("'a,b,,c'.split(',')", "['a', 'b', '', 'c']"),
        ("'a,b,c'.split(',', maxsplit=1)", "['a', 'b,c']"),
        ("'a,b,c'.rsplit(sep=',', maxsplit=1)", "['a,b', 'c']"),
        ("'a,b,c'.rsplit(',')", "['a', 'b', 'c']"),
        ("'a,b,c'.split(',', -1)", "['a', 'b', 'c']"),
        ("''.split()", "[]"),
        ("''.split(',')", "['']"),
        ("'a=b=c'.partition('=')", "['a', '=', 'b=c']"),
        ("'a=b=c'.rpartition('=')", "['a=b', '=', 'c']"),
        ("'abc'.partition('=')", "['abc', '', '']"),
        ("'abc'.rpartition('=')", "['', '', 'abc']"),
        (
            "['<a>x'.removeprefix('<a>'), 'x</a>'.removesuffix('</a>'), 'x'.removeprefix('y')]",
            "['x', 'x', 'x']",
        ),
        ("['\u{e9}b'.index('b'), 'x'.upper()]", "[1, 'X']"),
    ] {
        let text = render(&format!("{{{{ {source} }}}}"), &TALK).unwrap();
        assert_eq!(text.replace('"', "'"), expected, "{source}");
    }
    for (source, what) in [
        ("'a'.split('')", "empty separator"),
        ("'a'.partition('')", "empty separator"),
        ("'a'.index('b')", "substring not found"),
        ("'a'.split(',', most=1)", "most"),
        ("'a'.explode()", "no method named explode"),
    ] {
        let e = render(&format!("{{{{ {source} }}}}"), &TALK).unwrap_err().to_string();
        assert!(e.contains(what), "{source}: {e}");
    }
}

#[test]
fn json_is_written_as_asked_for() {
    for (arguments, expected) in [
        ("", "{\"a\": [1, \"\u{e9}\u{1f642}\\u001f\"], \"b\": {}}"),
        ("separators=(',', ':')", "{\"a\":[1,\"\u{e9}\u{1f642}\\u001f\"],\"b\":{}}"),
        ("ensure_ascii=true", "{\"a\": [1, \"\\u00e9\\ud83d\\ude42\\u001f\"], \"b\": {}}"),
        (
            "indent=1, sort_keys=true",
            "{\n \"a\": [\n  1,\n  \"\u{e9}\u{1f642}\\u001f\"\n ],\n \"b\": {}\n}",
        ),
    ] {
        let source = format!(
            "{{{{ {{'b': {{}}, 'a': [1, '\u{e9}\u{1f642}\u{1f}']}} | tojson({arguments}) }}}}"
        );
        assert_eq!(render(&source, &TALK).unwrap(), expected, "{arguments}");
    }
    for arguments in ["separators=(',',)", "separators=(',' * 17, ':')", "separators=1", "width=1"]
    {
        assert!(
            render(&format!("{{{{ 1 | tojson({arguments}) }}}}"), &TALK).is_err(),
            "{arguments}"
        );
    }
}

#[test]
fn what_files_have_none_of_is_chatml() {
    use tilewright::import::gguf::Metadata;
    let template = ChatTemplate::from_gguf(&Metadata::default(), &tokenizer()).unwrap();
    assert!(template.is_fallback());
    let text = template.render(&[Message::new("user", "Hi")]).unwrap();
    assert_eq!(text, "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
}

#[test]
fn templates_that_do_not_end_are_one_error() {
    let endless = "{% for a in range(9999) %}{% for b in range(9999) %}{% for c in range(9999) %}x\
                   {% endfor %}{% endfor %}{% endfor %}";
    assert_eq!(render(endless, &TALK), Err(TemplateError::Endless));
    let recursive = "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}";
    let e = render(recursive, &TALK).unwrap_err();
    assert!(matches!(e, TemplateError::Template(_) | TemplateError::Endless), "{e}");
    let long = format!("{{% for a in range(9999) %}}{}{{% endfor %}}", "x".repeat(100_000));
    assert_eq!(render(&long, &TALK), Err(TemplateError::TooLong));
    // Texts that double, in every way that a template has for it.
    let times = "{% set ns = namespace(x='aaaaaaaa') %}{% for i in range(60) %}BODY{% endfor %}";
    for body in [
        "{% set ns.x = ns.x + ns.x %}",
        "{% set ns.x = ns.x ~ ns.x %}",
        "{% set ns.x = ns.x * 8 %}",
        "{% set ns.x = [ns.x, ns.x] %}{{ ns.x ~ '' }}",
        "{% set ns.x = ns.x.replace('a', ns.x) %}",
        "{% set ns.x = ns.x | replace('a', ns.x) %}",
        "{% set ns.x = ns.x | join(ns.x) %}",
        "{% set ns.x = ns.x | indent(999999999999) %}",
        "{% set ns.x = '%999999999d' | format(1) %}",
        "{% set y %}{{ ns.x }}{{ ns.x }}{% endset %}{% set ns.x = y %}",
    ] {
        assert_eq!(
            render(&times.replace("BODY", body), &TALK),
            Err(TemplateError::TooLong),
            "{body}"
        );
    }
    let argument = "{% macro f(x, n) %}{% if n %}{{ f(x ~ x, n - 1) }}{% endif %}{% endmacro %}\
                    {{ f('aaaa' * 99999, 60) }}";
    assert_eq!(render(argument, &TALK), Err(TemplateError::TooLong));
    for bad in ["{% for %}", "{{ x", "{{ messages.y.z }}", "{{ nothing() }}", "{{ 1 | no }}"] {
        let e = render(bad, &TALK).unwrap_err();
        assert!(matches!(e, TemplateError::Template(_)), "{bad}: {e}");
        assert!(!e.to_string().contains('\n'), "{e}");
    }
    let deep = "(".repeat(10_000);
    assert!(render(&format!("{{{{ {deep} }}}}"), &TALK).is_err());
}

#[test]
fn line_ends_of_other_systems_are_line_ends() {
    let source =
        "{% for m in messages %}\n{{ m.content }}\n{% endfor %}\n  {% if true %}\nend\n{% endif %}";
    let expected = render(source, &TALK).unwrap();
    assert_eq!(expected, " Hi \nYes?\nBye\nend\n");
    for end in ["\r\n", "\r"] {
        assert_eq!(render(&source.replace('\n', end), &TALK).unwrap(), expected);
    }
    // Those of messages are what somebody said.
    assert_eq!(render("{{ messages[0].content }}", &[("user", "a\r\nb")]).unwrap(), "a\r\nb");
}

/// As Gemma 4's: thoughts of earlier turns are left out, and two answers in a row are one turn.
#[test]
fn a_template_that_leaves_out_thoughts() {
    let source = "\
{%- macro listed(value, quoted=True) -%}
    {%- if value is string -%}{{- '\"' + value + '\"' if quoted else value -}}
    {%- else -%}
        [{%- for item in value -%}
            {{- listed(item, quoted=quoted) -}}{{- ',' if not loop.last -}}
        {%- endfor -%}]
    {%- endif -%}
{%- endmacro -%}
{%- macro said(text) -%}
    {%- set found = namespace(text='') -%}
    {%- for part in text.split('<c|>') -%}
        {%- set found.text = found.text + part.split('<|c>')[0] -%}
    {%- endfor -%}
    {{- found.text | trim -}}
{%- endmacro -%}
{{- bos_token -}}
{%- if messages[0]['role'] in ['system', 'developer'] or tools -%}
    {{- listed([messages[0]['content'], ['x']]) + listed('y', quoted=False) + '\n' -}}
{%- endif %}
{%- for message in messages -%}
    {%- set before = namespace(role=None) -%}
    {%- if loop.index0 > 0 -%}
        {%- for at in range(loop.index0 - 1, -1, -1) -%}
            {%- if before.role is none and messages[at]['role'] != 'tool' -%}
                {%- set before.role = messages[at]['role'] -%}
            {%- endif -%}
        {%- endfor -%}
    {%- endif -%}
    {%- set role = 'model' if message['role'] == 'assistant' else message['role'] -%}
    {%- if not (role == 'model' and before.role == 'assistant') -%}{{- '<|t>' + role + '\n' }}{%- endif -%}
    {%- set thought = message.get('reasoning') or message.get('thought') -%}
    {%- if thought -%}{{- '<|c>' + thought + '<c|>' -}}{%- endif -%}
    {{- said(message['content']) if role == 'model' else message['content'] | trim -}}
    {{- '<t|>\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|t>model\n' -}}{%- endif -%}
";
    let thinks = ("assistant", "<|c>hm <c|> Yes? ");
    let text = render(source, &[("system", "Be"), TALK[0], thinks, TALK[1], TALK[2]]).unwrap();
    assert_eq!(
        text,
        "<s>[\"Be\",[\"x\"]]y\n<|t>system\nBe<t|>\n<|t>user\nHi<t|>\n\
         <|t>model\nYes?<t|>\nYes?<t|>\n<|t>user\nBye<t|>\n<|t>model\n"
    );
    let text = render(source, &TALK).unwrap();
    assert_eq!(text, "<s><|t>user\nHi<t|>\n<|t>model\nYes?<t|>\n<|t>user\nBye<t|>\n<|t>model\n");
}
