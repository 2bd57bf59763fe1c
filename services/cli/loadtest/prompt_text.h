#pragma once

#include <cstdint>
#include <string>

#include "services/cli/loadtest/random.h"

namespace lynx::loadtest {

// `words` random English words. Plain ones: most tokenizers have each as one token.
std::string RandomWords(Random& random, int64_t words);

// How a server counts tokens of such words: prompt_tokens = fixed + per_word * words. The fixed
// part is the chat template's.
struct TokenScale {
  double fixed = 0;
  double per_word = 1;

  // Words of a prompt of that many tokens, at least 1.
  int64_t WordsFor(int64_t tokens) const;
  // Words of a part of a prompt, without what is fixed; 0 for 0.
  int64_t WordsWithin(int64_t tokens) const;
};

// The scale on which prompts of `few` and `many` words (few < many) counted that many tokens.
TokenScale FitScale(int64_t few, int64_t few_tokens, int64_t many, int64_t many_tokens);

}  // namespace lynx::loadtest
