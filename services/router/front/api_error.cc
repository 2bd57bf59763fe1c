#include "services/router/front/api_error.h"

#include <algorithm>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/utf8.h"

namespace lynx::router {
namespace {

constexpr char kParamPayload[] = "lynx.api/param";
constexpr char kCodePayload[] = "lynx.api/code";
constexpr char kModelPayload[] = "lynx.api/model";

void SetPayload(absl::Status& status, const char* key, std::string_view value) {
  if (!value.empty()) status.SetPayload(key, absl::Cord(std::string(value)));
}

std::string GetPayload(const absl::Status& status, const char* key) {
  const auto payload = status.GetPayload(key);
  return payload.has_value() ? std::string(*payload) : std::string();
}

}  // namespace

absl::Status FieldError(std::string_view param, std::string_view message, std::string_view code) {
  absl::Status status =
      absl::InvalidArgumentError(absl::string_view(message.data(), message.size()));
  SetPayload(status, kParamPayload, param);
  SetPayload(status, kCodePayload, code);
  return status;
}

absl::Status ForModel(absl::Status error, std::string_view model) {
  SetPayload(error, kModelPayload, model);
  return error;
}

std::string ModelOf(const absl::Status& error) { return GetPayload(error, kModelPayload); }

absl::Status UnknownModelError(std::string_view model) {
  // The name is the client's text: bounded, and cut so that no character is left in halves.
  std::string shown = ReplaceInvalidUtf8(model.substr(0, 128));
  if (model.size() > 128) shown += "...";
  absl::Status status = absl::NotFoundError(absl::StrCat("The model '", shown, "' does not exist"));
  SetPayload(status, kParamPayload, "model");
  SetPayload(status, kCodePayload, "model_not_found");
  return status;
}

ApiError ToApiError(const absl::Status& status, absl::Duration retry_after) {
  LYNX_CHECK(!status.ok());
  ApiError error;
  error.message = ReplaceInvalidUtf8({status.message().data(), status.message().size()});
  error.param = GetPayload(status, kParamPayload);
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
      error.http_status = 400;
      error.type = "invalid_request_error";
      break;
    case absl::StatusCode::kNotFound:
      error.http_status = 404;
      error.type = "invalid_request_error";
      error.code = "not_found";
      break;
    case absl::StatusCode::kOutOfRange:
      error.http_status = 413;
      error.type = "invalid_request_error";
      error.code = "request_too_large";
      break;
    case absl::StatusCode::kResourceExhausted:
      error.http_status = 429;
      error.type = "rate_limit_error";
      error.code = "rate_limit_exceeded";
      break;
    case absl::StatusCode::kUnavailable:
      error.http_status = 503;
      error.type = "server_error";
      error.code = "unavailable";
      break;
    case absl::StatusCode::kDeadlineExceeded:
      error.http_status = 504;
      error.type = "server_error";
      error.code = "timeout";
      break;
    default:
      error.http_status = 500;
      error.type = "server_error";
      error.code = "internal_error";
      break;
  }
  if (std::string code = GetPayload(status, kCodePayload); !code.empty()) {
    error.code = std::move(code);
  }
  if (error.http_status == 429 || error.http_status == 503) {
    error.retry_after = std::max(retry_after, absl::Seconds(1));
  }
  return error;
}

std::string RetryAfterSeconds(absl::Duration retry_after) {
  return absl::StrCat(absl::ToInt64Seconds(absl::Ceil(retry_after, absl::Seconds(1))));
}

}  // namespace lynx::router
