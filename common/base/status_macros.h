#pragma once

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

// Returns from the enclosing function when `expr` (an absl::Status) is not OK.
#define LYNX_RETURN_IF_ERROR(expr)                                                   \
  do {                                                                               \
    if (absl::Status lynx_status_ = (expr); !lynx_status_.ok()) return lynx_status_; \
  } while (false)

#define LYNX_STATUS_CONCAT_INNER_(a, b) a##b
#define LYNX_STATUS_CONCAT_(a, b) LYNX_STATUS_CONCAT_INNER_(a, b)

// LYNX_ASSIGN_OR_RETURN(auto value, Function()): returns the error, or declares/assigns the value.
#define LYNX_ASSIGN_OR_RETURN(lhs, expr) \
  LYNX_ASSIGN_OR_RETURN_IMPL_(LYNX_STATUS_CONCAT_(lynx_statusor_, __LINE__), lhs, expr)
#define LYNX_ASSIGN_OR_RETURN_IMPL_(statusor, lhs, expr)   \
  auto statusor = (expr);                                  \
  if (!statusor.ok()) return std::move(statusor).status(); \
  lhs = *std::move(statusor)
