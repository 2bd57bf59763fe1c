#pragma once

#include <string>

#include "common/http/types.h"
#include "services/router/front/api_error.h"

// Responses in the form that all of the API has.
namespace lynx::router {

// The client's name of a request, when it is fit to be sent back and logged; else one of ours.
std::string RequestIdOf(const http::HttpRequest& request);

http::HttpResponse JsonResponse(int status, std::string body, const std::string& request_id);

// With Retry-After where the error has it.
http::HttpResponse ErrorResponse(const ApiError& error, const std::string& request_id);

}  // namespace lynx::router
