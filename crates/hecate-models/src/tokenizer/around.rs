//! Tokens around a prompt: what transformers puts there unless it is told not to.

use serde_json::Value;

/// Tokens before a text and after it, or why they are not known, in words.
pub(super) type Around = Result<[Vec<u32>; 2], String>;

/// Most of them.
const MOST: usize = 64;

/// Those of the `post_processor` of a `tokenizer.json`. It is read here and not by the library, which would take all memory for
/// one that says so.
pub(super) fn of_file(processor: &Value) -> Around {
    let number = |found: &Value| {
        let number = found.as_u64().and_then(|number| u32::try_from(number).ok());
        number.ok_or_else(|| format!("its `post_processor` has {found} in the place of a token's number"))
    };
    let mut around = <[Vec<u32>; 2]>::default();
    match processor["type"].as_str() {
        None if processor.is_null() => {}
        // It says of which bytes tokens are.
        Some("ByteLevel") => {}
        Some("BertProcessing" | "RobertaProcessing") => {
            around = [vec![number(&processor["cls"][1])?], vec![number(&processor["sep"][1])?]];
        }
        Some("TemplateProcessing") => {
            let mut texts = 0;
            for piece in processor["single"].as_array().into_iter().flatten() {
                let name = piece["SpecialToken"]["id"].as_str();
                let tokens = name.and_then(|name| processor["special_tokens"][name]["ids"].as_array());
                texts += usize::from(piece["Sequence"]["id"] == "A");
                around[texts.min(1)].extend(tokens.into_iter().flatten().map(number).collect::<Result<Vec<_>, _>>()?);
                // A long token may stand in many places.
                few(&around)?;
            }
            if texts != 1 {
                return Err(format!("its `post_processor` has the text {texts} times, expected it once"));
            }
        }
        Some("Sequence") => {
            let inner = processor["processors"].as_array().into_iter().flatten().map(of_file);
            let inner = inner.collect::<Result<Vec<_>, _>>()?;
            let mut some = inner.into_iter().filter(|around| around.iter().any(|tokens| !tokens.is_empty()));
            around = some.next().unwrap_or_default();
            // The library takes what the first made for two texts.
            if some.next().is_some() {
                return Err("its `post_processor` puts tokens around a text twice, expected it once".to_owned());
            }
        }
        _ => return Err(format!("its `post_processor` is of the type {}, which is not known", processor["type"])),
    }
    few(&around)?;
    Ok(around)
}

/// Refuses more tokens than any published tokenizer has.
fn few(around: &[Vec<u32>; 2]) -> Result<(), String> {
    let found = around.iter().map(Vec::len).sum::<usize>();
    if found <= MOST {
        Ok(())
    } else {
        Err(format!("its `post_processor` puts {found} tokens around a text, expected at most {MOST}"))
    }
}
