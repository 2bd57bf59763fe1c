// Generates alone what a cluster generates for many: reads requests as JSON lines on standard input
// ({"prompt": [ids], "max_tokens": n, "temperature": t, ...}), writes {"tokens": [ids]} for each.
//
// usage: generate_probe MODEL_FOLDER
#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

#include "common/engine/engine.h"
#include "common/engine/local_generator.h"
#include "common/model/model_runner.h"
#include "common/model/model_spec.h"

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fputs("usage: generate_probe MODEL_FOLDER\n", stderr);
    return 2;
  }
  using namespace lynx;
  constexpr int32_t kRows = 256;
  auto runner = model::ModelRunner::Load({.model_dir = argv[1],
                                          .kv_blocks = 512,
                                          .max_step_rows = kRows,
                                          .max_step_logits = 1,
                                          .threads = 1});
  if (!runner.ok()) {
    std::cerr << runner.status() << "\n";
    return 1;
  }
  const int32_t vocab_size = (*runner)->spec().vocab_size;
  const int32_t context = (*runner)->spec().max_positions;
  engine::Engine engine(*std::move(runner),
                        {.vocab_size = vocab_size, .max_step_rows = kRows, .max_step_logits = 1});
  std::string line;
  while (std::getline(std::cin, line)) {
    const auto json = nlohmann::json::parse(line);
    engine::GenerateRequest request;
    request.prompt = json.at("prompt").get<std::vector<TokenId>>();
    request.params.max_new_tokens = json.at("max_tokens");
    request.params.temperature = json.value("temperature", 1.0f);
    request.params.top_p = json.value("top_p", 1.0f);
    request.params.top_k = json.value("top_k", 0);
    request.params.min_p = json.value("min_p", 0.0f);
    request.params.presence_penalty = json.value("presence_penalty", 0.0f);
    request.params.frequency_penalty = json.value("frequency_penalty", 0.0f);
    request.params.repetition_penalty = json.value("repetition_penalty", 1.0f);
    request.params.seed = json.value("seed", uint64_t{0});
    request.params.choice_index = json.value("choice_index", 0u);
    const auto result = engine::Generate(
        engine, std::span(&request, 1),
        {.max_context_tokens = context, .max_chunk_tokens = kRows, .max_sequences = 1});
    if (!result.ok() || !result->front().status.ok()) {
      std::cerr << (result.ok() ? result->front().status : result.status()) << "\n";
      return 1;
    }
    nlohmann::json tokens = nlohmann::json::array();
    for (const auto& token : result->front().output) tokens.push_back(token.id);
    std::cout << nlohmann::json{{"tokens", tokens}}.dump() << std::endl;
  }
  return 0;
}
