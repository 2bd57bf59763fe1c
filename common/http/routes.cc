#include "common/http/routes.h"

#include <set>
#include <utility>

#include "absl/strings/str_join.h"
#include "common/base/check.h"

namespace lynx::http {

void Routes::Add(const std::string& method, const std::string& path, Function function) {
  const bool added = paths_[path].emplace(method, std::move(function)).second;
  LYNX_CHECK_MSG(added, method + " " + path + " has two owners");
}

const Routes::Function* Routes::Find(const HttpRequest& head,
                                     const std::map<std::string, Function>& path) const {
  auto it = path.find(head.method);
  if (it == path.end() && head.method == "HEAD") it = path.find("GET");
  return it == path.end() ? nullptr : &it->second;
}

void Routes::Handle(HttpRequest request, std::shared_ptr<ResponseWriter> writer) {
  const auto path = paths_.find(request.path);
  if (path == paths_.end() && fallback_ != nullptr) {
    return fallback_->Handle(std::move(request), std::move(writer));
  }
  const Function* function = path == paths_.end() ? nullptr : Find(request, path->second);
  if (function == nullptr) {
    // Only fails when the client has left, which needs no answer.
    writer->Send(*RefuseEarly(request)).IgnoreError();
    return;
  }
  (*function)(std::move(request), std::move(writer));
}

// Everything that is refused by method or path is refused before its body is read.
std::optional<HttpResponse> Routes::RefuseEarly(const HttpRequest& head) {
  const auto path = paths_.find(head.path);
  if (path == paths_.end()) {
    if (fallback_ != nullptr) return fallback_->RefuseEarly(head);
    return HttpResponse{.status = 404,
                        .headers = {{"Content-Type", kJsonContentType}},
                        .body = ErrorBody(404, "there is nothing at " + head.path)};
  }
  if (Find(head, path->second) != nullptr) return std::nullopt;
  std::set<std::string> allowed;
  for (const auto& [method, function] : path->second) allowed.insert(method);
  if (allowed.contains("GET")) allowed.insert("HEAD");
  const std::string list = absl::StrJoin(allowed, ", ");
  return HttpResponse{.status = 405,
                      .headers = {{"Content-Type", kJsonContentType}, {"Allow", list}},
                      .body = ErrorBody(405, head.path + " accepts " + list)};
}

bool Routes::AnswersWhenFull(const HttpRequest& head) {
  if (fallback_ != nullptr && !paths_.contains(head.path)) return fallback_->AnswersWhenFull(head);
  return RequestHandler::AnswersWhenFull(head);
}

std::string Routes::ErrorBody(int status, std::string_view message) {
  if (fallback_ != nullptr) return fallback_->ErrorBody(status, message);
  return RequestHandler::ErrorBody(status, message);
}

}  // namespace lynx::http
