//! `run --dry-run`: what a thread would be, before the first token is bought.

use rye_agent::capability::Capabilities;
use rye_agent::prepare::{self, Order, Prepared};
use serde_json::{Value, json};

use super::{Context, Outcome};
use crate::live::words::{amount, count, duration, short};
use crate::output::{CAUTION, DIM, STRONG, paint};

/// Prepares a thread as `run` would, and shows it.
pub fn show(context: &Context, order: &Order) -> Outcome {
    let environment = context.settings.host().environment.into_iter().collect();
    let prepared = prepare::prepare(&context.engine, &environment, order)?;
    let (kind, id) = (Some("directive"), Some(order.directive.id.as_str()));
    if context.answered(kind, id, &value(&prepared))? {
        return Ok(());
    }
    context.output.result(draw(&prepared))?;
    Ok(())
}

fn grants(capabilities: &Capabilities) -> Vec<&str> {
    capabilities.iter().collect()
}

fn value(prepared: &Prepared) -> Value {
    let (own, shared) = (&prepared.spec.own, &prepared.spec.shared);
    let hooks: Vec<Value> = shared
        .hooks
        .all()
        .iter()
        .map(|hook| json!({"id": hook.id, "event": hook.event, "layer": hook.layer}))
        .collect();
    json!({
        "dry_run": true,
        "directive": shared.directive,
        "prompt": own.prompt,
        "system": shared.system,
        "before": shared.before,
        "after": shared.after,
        "inputs": own.inputs,
        "outputs": shared.outputs,
        "tools": shared.definitions.tools.iter().map(|tool| tool.name.as_str()).collect::<Vec<_>>(),
        "capabilities": grants(&own.capabilities),
        "limits": own.limits.to_value(),
        "provider": shared.provider,
        "model": shared.model,
        "price": price(prepared),
        "context_window": shared.context_window,
        "max_output_tokens": shared.max_output_tokens,
        "hooks": hooks,
        "notices": prepared.notices,
    })
}

/// Dollars for a million tokens.
fn price(prepared: &Prepared) -> Value {
    match &prepared.spec.shared.price {
        None => Value::Null,
        Some(price) => {
            let million = |nanos: u64| rye_agent::money::Nanos(nanos.saturating_mul(1_000_000)).dollars();
            json!({"input_per_million": million(price.input), "output_per_million": million(price.output)})
        }
    }
}

fn draw(prepared: &Prepared) -> String {
    let (own, shared) = (&prepared.spec.own, &prepared.spec.shared);
    let mut lines = vec![format!(
        "{} {}",
        paint(STRONG, short(&shared.directive, 80)),
        paint(DIM, "would run; nothing was")
    )];
    let mut fact = |name: &str, value: String| {
        if !value.is_empty() {
            lines.push(format!("  {} {value}", paint(DIM, format_args!("{name:<10}"))));
        }
    };
    fact("provider", short(&shared.provider, 80));
    fact("model", short(&shared.model, 80));
    fact(
        "price",
        match &shared.price {
            None => "not known: tokens are limited, money is not".to_owned(),
            Some(price) if price.input == 0 && price.output == 0 => "nothing".to_owned(),
            Some(price) => {
                let million = |nanos: u64| amount(rye_agent::money::Nanos(nanos.saturating_mul(1_000_000)));
                format!("{} in, {} out, for a million tokens", million(price.input), million(price.output))
            }
        },
    );
    let limits = &own.limits;
    let mut shown = Vec::new();
    shown.extend(limits.turns.map(|turns| format!("turns {}", count(turns))));
    shown.extend(limits.tokens.map(|tokens| format!("tokens {}", count(tokens))));
    shown.extend(limits.spend.map(|spend| format!("spend {}", amount(spend))));
    shown.extend(limits.spawns.map(|spawns| format!("spawns {}", count(spawns))));
    shown.extend(limits.depth.map(|depth| format!("depth {}", count(depth))));
    let time = limits.duration_seconds.map(|seconds| duration(seconds.saturating_mul(1000)));
    shown.extend(time.map(|time| format!("time {time}")));
    fact("limits", shown.join(" · "));
    let grants = grants(&own.capabilities);
    fact("may", if grants.is_empty() { "nothing".to_owned() } else { short(&grants.join(", "), 400) });
    let tools: Vec<&str> = shared.definitions.tools.iter().map(|tool| tool.name.as_str()).collect();
    fact("tools", if tools.is_empty() { "none".to_owned() } else { short(&tools.join(", "), 400) });
    let hooks: Vec<String> =
        shared.hooks.all().iter().map(|hook| format!("{} ({})", hook.id, hook.event)).collect();
    fact("hooks", short(&hooks.join(", "), 400));
    let outputs: Vec<&str> =
        shared.outputs.iter().filter_map(|output| output.get("name").and_then(Value::as_str)).collect();
    fact("returns", short(&outputs.join(", "), 400));
    for notice in &prepared.notices {
        lines.push(format!("  {} {}", paint(CAUTION, "!"), rye_item::text::one_line(notice)));
    }
    let parts =
        [("system", shared.system.iter().collect()), ("before", shared.before.iter().collect::<Vec<_>>())];
    let parts =
        parts.into_iter().chain([("prompt", vec![&own.prompt]), ("after", shared.after.iter().collect())]);
    for (name, texts) in parts {
        for text in texts {
            lines.push(String::new());
            lines.push(paint(STRONG, name));
            lines.extend(rye_item::text::without_controls(text).lines().map(str::to_owned));
        }
    }
    lines.join("\n")
}
