#include "common/text/internal/unigram.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status_macros.h"
#include "common/base/utf8.h"

namespace lynx::text::internal {
namespace {

// An unknown character scores so much below the least likely piece.
constexpr double kUnknownPenalty = 10.0;

}  // namespace

absl::StatusOr<std::unique_ptr<Model>> Unigram::Create(const Json& model, std::string_view place) {
  auto unigram = std::unique_ptr<Unigram>(new Unigram());
  LYNX_ASSIGN_OR_RETURN(unigram->byte_fallback_, BoolField(model, "byte_fallback", false, place));
  const Json* vocab = FindField(model, "vocab");
  if (vocab == nullptr || !vocab->is_array()) return BadJson(place, "'vocab' must be an array");
  LYNX_RETURN_IF_ERROR(unigram->ReadVocabulary(*vocab, place));
  const Json* unknown = FindField(model, "unk_id");
  if (unknown == nullptr) return BadJson(place, "'unk_id' is missing");
  LYNX_ASSIGN_OR_RETURN(unigram->unknown_id_, ToTokenId(*unknown, place));
  if (static_cast<size_t>(unigram->unknown_id_) >= vocab->size()) {
    return BadJson(place,
                   absl::StrCat("unk_id ", unigram->unknown_id_, " is not in the vocabulary"));
  }
  for (size_t byte = 0; byte < 256; ++byte) {
    unigram->byte_ids_[byte] = unigram->Find(absl::StrFormat("<0x%02X>", byte));
  }
  return unigram;
}

absl::Status Unigram::ReadVocabulary(const Json& vocab, std::string_view place) {
  if (vocab.size() > static_cast<size_t>(kMaxTokenId)) return BadJson(place, "'vocab' is too long");
  vocab_.reserve(vocab.size());
  scores_.reserve(vocab.size());
  double lowest = std::numeric_limits<double>::infinity();
  for (size_t i = 0; i < vocab.size(); ++i) {
    const auto here = [&] { return absl::StrCat(std::string(place), ".vocab[", i, "]"); };
    const Json& entry = vocab[i];
    if (!entry.is_array() || entry.size() != 2 || !entry[0].is_string() || !entry[1].is_number()) {
      return BadJson(here(), "must be a pair of a string and a score");
    }
    const auto& piece = entry[0].get_ref<const std::string&>();
    const auto id = static_cast<int32_t>(i);
    if (!vocab_.emplace(piece, id).second) {
      return BadJson(here(), "'" + piece + "' is there already");
    }
    if (!piece.empty()) pieces_.Insert(piece, id);
    scores_.push_back(entry[1].get<double>());
    lowest = std::min(lowest, scores_.back());
  }
  unknown_score_ = lowest - kUnknownPenalty;
  return absl::OkStatus();
}

void Unigram::Encode(std::string_view word, std::vector<int32_t>& ids) const {
  cache_.Append(word, ids, [this](std::string_view text, std::vector<int32_t>& out) {
    EncodeUncached(text, out);
  });
}

void Unigram::EncodeUncached(std::string_view word, std::vector<int32_t>& ids) const {
  // The best way to the end of each prefix: its score and its last piece.
  struct Best {
    double score = 0;
    int32_t id = -1;  // -1: nothing ends here.
    uint32_t begin = 0;
  };
  std::vector<Best> best(word.size() + 1);
  const auto offer = [&best](size_t begin, size_t end, int32_t id, double score) {
    if (best[end].id >= 0 && score <= best[end].score) return;
    best[end] = {score, id, static_cast<uint32_t>(begin)};
  };
  for (size_t at = 0; at < word.size();) {
    const size_t character = std::max<size_t>(1, Utf8SequenceLength(word.substr(at)));
    const double so_far = best[at].score;
    bool is_known = false;  // The character is a piece by itself.
    ByteTrie::Node node = ByteTrie::kRoot;
    for (size_t end = at; end < word.size();) {
      node = pieces_.Next(node, word[end]);
      if (node == ByteTrie::kNone) break;
      ++end;
      const int32_t id = pieces_.Value(node);
      if (id < 0) continue;
      offer(at, end, id, scores_[static_cast<size_t>(id)] + so_far);
      is_known = is_known || end - at == character;
    }
    if (!is_known) offer(at, at + character, unknown_id_, unknown_score_ + so_far);
    at += character;
  }

  std::vector<std::pair<size_t, size_t>> cuts;
  for (size_t end = word.size(); end > 0; end = best[end].begin) {
    const size_t begin = best[end].begin;
    // Neighbouring unknown characters are one unknown.
    const bool joins =
        best[end].id == unknown_id_ && !cuts.empty() && best[cuts.back().second].id == unknown_id_;
    if (joins) {
      cuts.back().first = begin;
    } else {
      cuts.emplace_back(begin, end);
    }
  }
  for (auto cut = cuts.rbegin(); cut != cuts.rend(); ++cut) {
    const int32_t id = best[cut->second].id;
    if (id == unknown_id_) {
      AppendUnknown(word.substr(cut->first, cut->second - cut->first), ids);
    } else {
      ids.push_back(id);
    }
  }
}

void Unigram::AppendUnknown(std::string_view text, std::vector<int32_t>& ids) const {
  // As in the reference, what was joined may spell a piece after all.
  if (const int32_t id = Find(text); id >= 0) {
    ids.push_back(id);
    return;
  }
  const auto byte_id = [this](char c) { return byte_ids_[static_cast<uint8_t>(c)]; };
  const bool as_bytes = byte_fallback_ && std::all_of(text.begin(), text.end(),
                                                      [&](char c) { return byte_id(c) >= 0; });
  if (!as_bytes) {
    ids.push_back(unknown_id_);
    return;
  }
  for (const char c : text) ids.push_back(byte_id(c));
}

}  // namespace lynx::text::internal
