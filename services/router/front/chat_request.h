#pragma once

#include <string_view>

#include "absl/status/statusor.h"
#include "common/text/chat_template.h"
#include "services/router/front/api_request.h"
#include "services/router/front/json_fields.h"

namespace lynx::router {

// What a chat template is given of a request: messages, tools, documents and chat_template_kwargs.
// `body` is what `text` parsed to. Everything but role and content goes on as it was written,
// except that the arguments of tool calls, a JSON text in OpenAI's form, become the object they
// describe (RequestLimits::tool_arguments_as_text).
//
//   InvalidArgument  as api_error.h makes it, names the field.
absl::StatusOr<text::ChatInput> ReadChatInput(const Json& body, std::string_view text,
                                              const RequestLimits& limits);

}  // namespace lynx::router
