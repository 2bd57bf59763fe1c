#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "common/http/server.h"

namespace lynx::http {

// Sends requests to functions by exact path and method. A known path with another method is 405
// with Allow; an unknown path goes to the fallback, or is 404. HEAD goes where GET goes.
//
// Add everything before the server starts; not changed after that.
class Routes final : public RequestHandler {
 public:
  using Function = std::function<void(HttpRequest, std::shared_ptr<ResponseWriter>)>;

  // `fallback` (may be null, not owned) also words error bodies and is asked RefuseEarly for paths
  // that are not known here.
  explicit Routes(RequestHandler* fallback = nullptr) : fallback_(fallback) {}

  // Aborts when the pair is taken: two owners of one path is a bug.
  void Add(const std::string& method, const std::string& path, Function function);

  void Handle(HttpRequest request, std::shared_ptr<ResponseWriter> writer) override;
  std::optional<HttpResponse> RefuseEarly(const HttpRequest& head) override;
  bool AnswersWhenFull(const HttpRequest& head) override;
  std::string ErrorBody(int status, std::string_view message) override;

 private:
  // Null when the method is not among the path's.
  const Function* Find(const HttpRequest& head, const std::map<std::string, Function>& path) const;

  RequestHandler* const fallback_;
  std::map<std::string, std::map<std::string, Function>, std::less<>> paths_;  // path -> method
};

}  // namespace lynx::http
