//! `run`: a directive in a thread, shown as it goes.

use rye_agent::driver::Signal;
use rye_agent::prepare::Order;
use rye_agent::store::ThreadRow;
use rye_agent::threads::{Started, Threads, async_answer};
use rye_engine::{Code, Error};
use rye_item::{ItemRef, ItemType};
use serde_json::{Map, Value};

use super::threads::{Shelf, steer, work};
use super::{Context, Outcome, dry_run, execute};
use crate::arguments::RunArguments;
use crate::global::Global;
use crate::output::{DIM, paint};

/// `rye run`
pub fn run(global: &Global, arguments: &RunArguments) -> Outcome {
    if arguments.dry_run {
        let context = Context::open(global)?;
        return dry_run::show(&context, &order(arguments)?);
    }
    let wanted = Wanted::of(arguments)?;
    if arguments.is_async {
        let context = Context::open(global)?;
        let old = old(&context, arguments)?;
        return in_background(context, wanted, old.as_ref());
    }
    let context = Context::open_to_run(global)?;
    let old = old(&context, arguments)?;
    work::refuse_early(&context, &wanted.order)?;
    work::drive(
        context,
        |_| {},
        async move |threads, signal| wanted.begin(threads, old.as_ref(), signal).await,
    )
}

/// What was asked for.
struct Wanted {
    order: Order,
    message: Option<String>,
}

impl Wanted {
    fn of(arguments: &RunArguments) -> Result<Self, Error> {
        Ok(Self { order: order(arguments)?, message: arguments.message.clone() })
    }

    async fn begin(
        self,
        threads: &Threads,
        old: Option<&ThreadRow>,
        signal: Signal,
    ) -> Result<Started, Error> {
        match old {
            Some(old) => threads.continue_from(old, self.message, signal).await,
            None => threads.start(self.order, signal).await,
        }
    }
}

pub(super) fn order(arguments: &RunArguments) -> Result<Order, Error> {
    let parse = rye_engine::verbs::sign::parse_item;
    let item = match ItemRef::split_canonical(&arguments.directive) {
        Some(_) => parse(None, &arguments.directive)?,
        None => parse(Some("directive"), &arguments.directive)?,
    };
    if item.item_type != ItemType::Directive {
        let message = format!("a {} is not run in a thread", item.item_type);
        return Err(Error::new(Code::InvalidArgument, message)
            .of(&item)
            .hint(format!("rye execute {} {}", item.item_type, item.id)));
    }
    let mut inputs = arguments.params.as_deref().map(execute::parameters).transpose()?.unwrap_or_default();
    inputs
        .extend(execute::pairs(&arguments.inputs)?.into_iter().map(|(name, word)| (name, Value::from(word))));
    let mut order = Order::new(item, inputs);
    order.model.clone_from(&arguments.model);
    order.provider.clone_from(&arguments.provider);
    order.limits = steer::limits(&arguments.limits, false)?;
    Ok(order)
}

/// The thread to go on from, which must be one of this directive.
fn old(context: &Context, arguments: &RunArguments) -> Result<Option<ThreadRow>, Error> {
    let Some(word) = &arguments.continues else {
        return Ok(None);
    };
    let (_, row) = Shelf::with(&context.settings, word)?;
    let directive = arguments.directive.strip_prefix("directive:").unwrap_or(&arguments.directive);
    if row.directive != directive {
        let message =
            format!("{} runs another directive: {}", row.id, rye_item::text::one_line(&row.directive));
        return Err(Error::new(Code::InvalidArgument, message)
            .hint(format!("rye run {} --continue {}", row.directive, row.id)));
    }
    Ok(Some(row))
}

/// Leaves the thread to the process that runs such threads; it is there for good when this returns.
fn in_background(context: Context, wanted: Wanted, old: Option<&ThreadRow>) -> Outcome {
    work::refuse_early(&context, &wanted.order)?;
    let Context { settings, engine, output } = context;
    let threads = work::open(&settings, engine, None)?;
    let left = work::runtime()?.block_on(async {
        match old {
            Some(old) => threads.continue_in_background(old, wanted.message).await,
            None => threads.start_in_background(wanted.order).await,
        }
    })?;
    for notice in &left.notices {
        output.warn(rye_item::text::one_line(notice));
    }
    let id = &left.thread_id;
    if output.is_json {
        let mut value = async_answer(id, &left.directive, *left.with.as_ref().unwrap_or(&0));
        if let Err(why) = &left.with {
            value["status"] = Value::from("created");
            value["note"] = Value::from(why.as_str());
        }
        output.json(&value)?;
        return Ok(());
    }
    output.result(id)?;
    match &left.with {
        Ok(_) => {
            output.note(paint(DIM, format_args!("it goes on by itself; follow it: rye thread tail {id}")));
        }
        Err(why) => {
            output.warn(format_args!("nobody runs it yet: {}", rye_item::text::one_line(why)));
            output.note(format_args!("to have it run: rye thread wait {id}"));
        }
    }
    Ok(())
}

/// The failure that another process told of.
pub(super) fn failure(value: &Value) -> Error {
    let text = |key: &str| value.get(key).and_then(Value::as_str).unwrap_or_default();
    let code = Code::ALL.iter().copied().find(|code| code.as_str() == text("code"));
    let mut error = Error::new(code.unwrap_or(Code::ThreadFailed), text("error"));
    for (key, detail) in value.as_object().unwrap_or(&Map::new()) {
        if !matches!(key.as_str(), "status" | "error" | "code" | "hints") {
            error.details.insert(key.clone(), detail.clone());
        }
    }
    for hint in value.get("hints").and_then(Value::as_array).into_iter().flatten() {
        error.hints.extend(hint.as_str().map(str::to_owned));
    }
    error
}
