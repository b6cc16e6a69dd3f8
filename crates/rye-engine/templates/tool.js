// Describe here what {name} does; agents read the description below.
export const __version__ = "0.1.0";
export const __tool_type__ = "javascript";
export const __executor_id__ = "rye/core/runtimes/node/function";
export const __category__ = "{category}";
export const __tool_name__ = "{name}";
export const __tool_description__ = "Greet by name (change me: one sentence that says what it does)";

export const CONFIG_SCHEMA = {
  type: "object",
  properties: {
    name: { type: "string", default: "world", description: "Whom to greet" },
  },
  additionalProperties: false,
};

export function execute(params, projectPath) {
  return { greeting: `Hello, ${params.name}!` };
}
