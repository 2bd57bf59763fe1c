#include "services/cli/loadtest/trace.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/civil_time.h"
#include "common/base/status_macros.h"
#include "services/cli/loadtest/json_line.h"
#include "services/cli/loadtest/lengths.h"
#include "services/cli/loadtest/text_position.h"

namespace lynx::loadtest {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxHashIds = 1 << 20;
// Ten years of anything: times beyond are a mistake, and would overflow sums.
constexpr double kMaxSeconds = 3.2e8;

std::string TokensWanted() { return absl::StrCat("an integer from 0 to ", kMaxTokens); }

// ---- Mooncake

absl::StatusOr<TraceRequest> ParseMooncakeLine(std::string_view line, const std::string& file,
                                               size_t number) {
  LYNX_ASSIGN_OR_RETURN(const Json json, ParseJsonLine(line, file, number));
  const auto bad = [&](const char* name, std::string_view wanted) {
    return ErrorAt(file, number, ColumnOfMember(line, name),
                   absl::StrCat(name, ": wanted ", std::string(wanted)));
  };
  const auto tokens = [&](const char* name) -> absl::StatusOr<int64_t> {
    const auto found = json.find(name);
    if (found == json.end() || !found->is_number_unsigned() || *found > kMaxTokens) {
      return bad(name, TokensWanted());
    }
    return found->get<int64_t>();
  };
  TraceRequest request;
  const auto timestamp = json.find("timestamp");
  if (timestamp == json.end() || !timestamp->is_number() || timestamp->get<double>() < 0 ||
      timestamp->get<double>() > kMaxSeconds * 1000) {
    return bad("timestamp", "milliseconds since the start, not negative");
  }
  request.at = absl::Milliseconds(timestamp->get<double>());
  LYNX_ASSIGN_OR_RETURN(request.input_tokens, tokens("input_length"));
  LYNX_ASSIGN_OR_RETURN(request.output_tokens, tokens("output_length"));
  if (const auto ids = json.find("hash_ids"); ids != json.end()) {
    if (!ids->is_array() || ids->size() > kMaxHashIds) return bad("hash_ids", "a list of integers");
    for (const Json& id : *ids) {
      if (!id.is_number_unsigned()) return bad("hash_ids", "a list of integers, none negative");
      request.hash_ids.push_back(id.get<uint64_t>());
    }
  }
  return request;
}

// ---- CSV

struct Cell {
  std::string text;
  size_t column = 0;  // Of its first byte, from 1.
};

// Commas separate; a cell may be "quoted", with "" for a quote. nullopt: a quote does not end.
std::optional<std::vector<Cell>> SplitCsv(std::string_view line) {
  std::vector<Cell> cells;
  size_t at = 0;
  for (;;) {
    Cell cell{.text = "", .column = at + 1};
    if (at < line.size() && line[at] == '"') {
      for (++at;; ++at) {
        if (at >= line.size()) return std::nullopt;
        if (line[at] == '"') {
          if (!line.substr(at + 1).starts_with('"')) break;
          ++at;
        }
        cell.text += line[at];
      }
      ++at;
      if (at < line.size() && line[at] != ',') return std::nullopt;
    } else {
      const size_t end = std::min(line.find(',', at), line.size());
      cell.text = line.substr(at, end - at);
      at = end;
    }
    cells.push_back(std::move(cell));
    if (at >= line.size()) return cells;
    ++at;
  }
}

// "2023-11-16 18:17:03.9799600", with 'T' or a zone offset if there is one. nullopt: no such time.
std::optional<absl::Time> ParseCalendarTime(const std::string& text) {
  for (const char* format : {"%Y-%m-%d %H:%M:%E*S%Ez", "%Y-%m-%d %H:%M:%E*S",
                             "%Y-%m-%dT%H:%M:%E*S%Ez", "%Y-%m-%dT%H:%M:%E*S"}) {
    absl::Time time;
    std::string error;
    if (absl::ParseTime(format, text, &time, &error) && time > absl::InfinitePast() &&
        time < absl::InfiniteFuture()) {
      return time;
    }
  }
  return std::nullopt;
}

std::optional<absl::Time> ParseSeconds(const std::string& text) {
  double seconds = 0;
  if (!absl::SimpleAtod(text, &seconds) || !(seconds >= 0) || !(seconds <= kMaxSeconds)) {
    return std::nullopt;
  }
  return absl::UnixEpoch() + absl::Seconds(seconds);
}

// What tells one CSV format from another.
struct CsvFormat {
  const char* time;
  const char* input;
  const char* output;
  std::optional<absl::Time> (*parse_time)(const std::string&);
  const char* time_wanted;
};
constexpr CsvFormat kAzureCsv = {"TIMESTAMP", "ContextTokens", "GeneratedTokens", ParseCalendarTime,
                                 "a time like 2023-11-16 18:17:03.9799600"};
constexpr CsvFormat kBurstGptCsv = {"Timestamp", "Request tokens", "Response tokens", ParseSeconds,
                                    "seconds since the start, not negative"};

class CsvReader {
 public:
  CsvReader(const CsvFormat& format, const std::string& file) : format_(format), file_(file) {}

  // The first line gives no request.
  absl::StatusOr<std::optional<TraceRequest>> Line(std::string_view line, size_t number) {
    const auto cells = SplitCsv(line);
    if (!cells.has_value()) return ErrorAt(file_, number, 1, "a quoted cell does not end");
    if (!header_) return ReadHeader(*cells, number);
    TraceRequest request;
    LYNX_ASSIGN_OR_RETURN(const Cell* const time, Find(*cells, time_, format_.time, number, line));
    const auto at = format_.parse_time(time->text);
    if (!at.has_value()) {
      return ErrorAt(
          file_, number, time->column,
          absl::StrCat(format_.time, " is '", time->text, "', wanted ", format_.time_wanted));
    }
    request.at = *at - absl::UnixEpoch();
    LYNX_ASSIGN_OR_RETURN(request.input_tokens,
                          Tokens(*cells, input_, format_.input, number, line));
    LYNX_ASSIGN_OR_RETURN(request.output_tokens,
                          Tokens(*cells, output_, format_.output, number, line));
    return request;
  }

 private:
  absl::StatusOr<std::optional<TraceRequest>> ReadHeader(const std::vector<Cell>& cells,
                                                         size_t number) {
    const auto find = [&](const char* name) -> absl::StatusOr<size_t> {
      for (size_t i = 0; i < cells.size(); ++i) {
        if (cells[i].text == name) return i;
      }
      return ErrorAt(file_, number, 1, absl::StrCat("the first line names no column ", name));
    };
    LYNX_ASSIGN_OR_RETURN(time_, find(format_.time));
    LYNX_ASSIGN_OR_RETURN(input_, find(format_.input));
    LYNX_ASSIGN_OR_RETURN(output_, find(format_.output));
    header_ = true;
    return std::nullopt;
  }

  absl::StatusOr<const Cell*> Find(const std::vector<Cell>& cells, size_t index, const char* name,
                                   size_t number, std::string_view line) const {
    if (index < cells.size()) return &cells[index];
    return ErrorAt(file_, number, line.size() + 1, absl::StrCat("the line has no ", name));
  }

  absl::StatusOr<int64_t> Tokens(const std::vector<Cell>& cells, size_t index, const char* name,
                                 size_t number, std::string_view line) const {
    LYNX_ASSIGN_OR_RETURN(const Cell* const cell, Find(cells, index, name, number, line));
    int64_t value = 0;
    const char* const end = cell->text.data() + cell->text.size();
    const auto [stopped, error] = std::from_chars(cell->text.data(), end, value);
    if (error != std::errc() || stopped != end || value < 0 || value > kMaxTokens) {
      return ErrorAt(file_, number, cell->column,
                     absl::StrCat(name, " is '", cell->text, "', wanted ", TokensWanted()));
    }
    return value;
  }

  const CsvFormat& format_;
  const std::string& file_;
  bool header_ = false;
  size_t time_ = 0;
  size_t input_ = 0;
  size_t output_ = 0;
};

// By what the first line holds. nullopt: none of the formats.
std::optional<TraceFormat> Guess(std::string_view line) {
  if (line.starts_with('{')) return TraceFormat::kMooncake;
  if (line.find(kAzureCsv.input) != std::string_view::npos) return TraceFormat::kAzure;
  if (line.find(kBurstGptCsv.input) != std::string_view::npos) return TraceFormat::kBurstGpt;
  return std::nullopt;
}

}  // namespace

std::string_view TraceFormatName(TraceFormat format) {
  switch (format) {
    case TraceFormat::kAuto:
      return "auto";
    case TraceFormat::kMooncake:
      return "mooncake";
    case TraceFormat::kAzure:
      return "azure";
    case TraceFormat::kBurstGpt:
      return "burstgpt";
  }
  return "unknown";
}

absl::StatusOr<Trace> ParseTrace(std::string_view text, const std::string& file,
                                 TraceFormat format) {
  Trace trace{.format = format, .requests = {}, .without_answer = 0};
  std::optional<CsvReader> csv;
  const absl::Status read =
      ForEachLine(text, [&](std::string_view line, size_t number) -> absl::Status {
        if (trace.format == TraceFormat::kAuto) {
          const auto guess = Guess(line);
          if (!guess.has_value()) {
            return ErrorAt(
                file, number, 1,
                "neither a JSON object (Mooncake) nor a header with ContextTokens (Azure) "
                "or Request tokens (BurstGPT)");
          }
          trace.format = *guess;
        }
        std::optional<TraceRequest> request;
        if (trace.format == TraceFormat::kMooncake) {
          LYNX_ASSIGN_OR_RETURN(request, ParseMooncakeLine(line, file, number));
        } else {
          if (!csv.has_value()) {
            csv.emplace(trace.format == TraceFormat::kAzure ? kAzureCsv : kBurstGptCsv, file);
          }
          LYNX_ASSIGN_OR_RETURN(request, csv->Line(line, number));
        }
        if (!request.has_value()) return absl::OkStatus();
        if (request->output_tokens == 0) {
          ++trace.without_answer;
          return absl::OkStatus();
        }
        request->input_tokens = std::max<int64_t>(1, request->input_tokens);
        trace.requests.push_back(*std::move(request));
        return absl::OkStatus();
      });
  LYNX_RETURN_IF_ERROR(read);
  if (trace.requests.empty()) return absl::InvalidArgumentError(file + ": holds no request");
  std::stable_sort(trace.requests.begin(), trace.requests.end(),
                   [](const TraceRequest& a, const TraceRequest& b) { return a.at < b.at; });
  const absl::Duration first = trace.requests.front().at;
  for (TraceRequest& request : trace.requests) request.at -= first;
  return trace;
}

}  // namespace lynx::loadtest
