//! `run --dry-run`: what a thread would be, before the first token is bought.

use rye_agent::capability::Capabilities;
use rye_agent::prepare::{self, PreparedThread, ThreadRequest};
use serde_json::{Value, json};

use super::{CommandContext, CommandResult};
use crate::live::format::{format_count, format_duration, format_money, truncate};
use crate::output::{DIM, HEADING, WARNING, paint};

/// Prepares a thread as `run` would, and shows it.
pub fn show(context: &CommandContext, request: &ThreadRequest) -> CommandResult {
    let environment = context.settings.host().variables.into_iter().collect();
    let prepared = prepare::prepare(&context.engine, &environment, request)?;
    let (kind, id) = (Some("directive"), Some(request.directive.id.as_str()));
    if context.print_if_json(kind, id, &to_value(&prepared))? {
        return Ok(());
    }
    context.output.print(render(&prepared))?;
    Ok(())
}

fn grant_names(capabilities: &Capabilities) -> Vec<&str> {
    capabilities.iter().collect()
}

fn to_value(prepared: &PreparedThread) -> Value {
    let (own, shared) = (&prepared.spec.instance, &prepared.spec.template);
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
        "capabilities": grant_names(&own.capabilities),
        "limits": own.limits.to_value(),
        "provider": shared.provider,
        "model": shared.model,
        "price": price_value(prepared),
        "context_window": shared.context_window,
        "max_output_tokens": shared.max_output_tokens,
        "hooks": hooks,
        "notices": prepared.notices,
    })
}

/// Dollars for a million tokens.
fn price_value(prepared: &PreparedThread) -> Value {
    match &prepared.spec.template.price {
        None => Value::Null,
        Some(price) => {
            let million = |nanos: u64| rye_agent::money::Nanos(nanos.saturating_mul(1_000_000)).dollars();
            json!({"input_per_million": million(price.input), "output_per_million": million(price.output)})
        }
    }
}

fn render(prepared: &PreparedThread) -> String {
    let (own, shared) = (&prepared.spec.instance, &prepared.spec.template);
    let mut lines = vec![format!(
        "{} {}",
        paint(HEADING, truncate(&shared.directive, 80)),
        paint(DIM, "dry run OK; nothing was executed")
    )];
    let mut add_field = |name: &str, value: String| {
        if !value.is_empty() {
            lines.push(format!("  {} {value}", paint(DIM, format_args!("{name:<10}"))));
        }
    };
    add_field("provider", truncate(&shared.provider, 80));
    add_field("model", truncate(&shared.model, 80));
    add_field(
        "price",
        match &shared.price {
            None => "unknown: only tokens are limited".to_owned(),
            Some(price) if price.input == 0 && price.output == 0 => "nothing".to_owned(),
            Some(price) => {
                let million =
                    |nanos: u64| format_money(rye_agent::money::Nanos(nanos.saturating_mul(1_000_000)));
                format!("{} in, {} out, for a million tokens", million(price.input), million(price.output))
            }
        },
    );
    let limits = &own.limits;
    let mut limit_parts = Vec::new();
    limit_parts.extend(limits.turns.map(|turns| format!("turns {}", format_count(turns))));
    limit_parts.extend(limits.tokens.map(|tokens| format!("tokens {}", format_count(tokens))));
    limit_parts.extend(limits.spend.map(|spend| format!("spend {}", format_money(spend))));
    limit_parts.extend(limits.spawns.map(|spawns| format!("spawns {}", format_count(spawns))));
    limit_parts.extend(limits.depth.map(|depth| format!("depth {}", format_count(depth))));
    let time = limits.duration_seconds.map(|seconds| format_duration(seconds.saturating_mul(1000)));
    limit_parts.extend(time.map(|time| format!("time {time}")));
    add_field("limits", limit_parts.join(" · "));
    let grants = grant_names(&own.capabilities);
    add_field(
        "may",
        if grants.is_empty() { "nothing".to_owned() } else { truncate(&grants.join(", "), 400) },
    );
    let tools: Vec<&str> = shared.definitions.tools.iter().map(|tool| tool.name.as_str()).collect();
    add_field("tools", if tools.is_empty() { "none".to_owned() } else { truncate(&tools.join(", "), 400) });
    let hooks: Vec<String> =
        shared.hooks.all().iter().map(|hook| format!("{} ({})", hook.id, hook.event)).collect();
    add_field("hooks", truncate(&hooks.join(", "), 400));
    let outputs: Vec<&str> =
        shared.outputs.iter().filter_map(|output| output.get("name").and_then(Value::as_str)).collect();
    add_field("returns", truncate(&outputs.join(", "), 400));
    for notice in &prepared.notices {
        lines.push(format!("  {} {}", paint(WARNING, "!"), rye_item::text::one_line(notice)));
    }
    let parts =
        [("system", shared.system.iter().collect()), ("before", shared.before.iter().collect::<Vec<_>>())];
    let parts =
        parts.into_iter().chain([("prompt", vec![&own.prompt]), ("after", shared.after.iter().collect())]);
    for (name, texts) in parts {
        for text in texts {
            lines.push(String::new());
            lines.push(paint(HEADING, name));
            lines.extend(rye_item::text::strip_controls(text).lines().map(str::to_owned));
        }
    }
    lines.join("\n")
}
