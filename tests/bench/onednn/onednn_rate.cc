// The rate that oneDNN reaches in bf16 for the products of one layer of a model's prefill:
// projections of attention for all tokens, and of every expert for as many rows as its router gave
// it (recorded logits, as `lynx bench prefill --shape` replays them). Each expert has weights of
// its own, in the layout that oneDNN prefers, and they are read as a step reads them: once.

#include <omp.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <iostream>
#include <numeric>
#include <oneapi/dnnl/dnnl.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "common/config/flag_set.h"
#include "kernels/core/cpu_limit.h"
#include "services/cli/bench/model_shape.h"
#include "services/cli/bench/quantile.h"
#include "services/cli/bench/router_traces.h"
#include "services/cli/engine_flags.h"

namespace {

using dnnl::memory;

// y[rows, out] = x[rows, in] w[in, out], all bf16.
class Product {
 public:
  Product(const dnnl::engine& engine, dnnl::stream& stream, int64_t rows, int64_t in, int64_t out)
      : operations_(2.0 * static_cast<double>(rows) * static_cast<double>(in) *
                    static_cast<double>(out)) {
    const auto bf16 = memory::data_type::bf16;
    const memory::desc x({rows, in}, bf16, memory::format_tag::ab);
    const memory::desc any({in, out}, bf16, memory::format_tag::any);
    const memory::desc y({rows, out}, bf16, memory::format_tag::ab);
#if DNNL_VERSION_MAJOR >= 3
    const dnnl::matmul::primitive_desc product(engine, x, any, y);
#else
    const dnnl::matmul::primitive_desc product(dnnl::matmul::desc(x, any, y), engine);
#endif
    matmul_ = dnnl::matmul(product);
    memory plain({{in, out}, bf16, memory::format_tag::ba}, engine);
    Fill(plain, static_cast<size_t>(in * out), 0x3c23);
    memory weights(product.weights_desc(), engine);
    dnnl::reorder(plain, weights).execute(stream, plain, weights);
    memory source(x, engine);
    Fill(source, static_cast<size_t>(rows * in), 0x3f80);
    stream.wait();
    arguments_ = {
        {DNNL_ARG_SRC, source}, {DNNL_ARG_WEIGHTS, weights}, {DNNL_ARG_DST, memory(y, engine)}};
  }

  void Run(dnnl::stream& stream) const { matmul_.execute(stream, arguments_); }
  double operations() const { return operations_; }

 private:
  static void Fill(memory& to, size_t count, uint16_t value) {
    std::fill_n(static_cast<uint16_t*>(to.get_data_handle()), count, value);
  }

  double operations_;
  dnnl::matmul matmul_;
  std::unordered_map<int, memory> arguments_;
};

// Rows that each expert has, of `tokens` that take the traced sequences' routes.
std::vector<int64_t> RowsOfExperts(const lynx::cli::RouterTraces& traces, int32_t experts,
                                   int32_t top_k, int64_t tokens) {
  std::vector<float> logits(static_cast<size_t>(tokens * experts));
  lynx::cli::ComposeRouterLogits(traces, experts, tokens, 0, logits);
  std::vector<int64_t> rows(static_cast<size_t>(experts), 0);
  std::vector<size_t> order(static_cast<size_t>(experts));
  for (int64_t token = 0; token < tokens; ++token) {
    const float* row = logits.data() + token * experts;
    std::iota(order.begin(), order.end(), 0);
    std::partial_sort(order.begin(), order.begin() + top_k, order.end(),
                      [&](size_t a, size_t b) { return row[a] > row[b]; });
    for (int32_t k = 0; k < top_k; ++k) ++rows[order[static_cast<size_t>(k)]];
  }
  return rows;
}

struct Rate {
  double gflop_s;
  double dense_gflop_s;
  double expert_gflop_s;
};

double Seconds(const std::vector<Product>& products, dnnl::stream& stream) {
  const auto start = std::chrono::steady_clock::now();
  for (const Product& product : products) product.Run(stream);
  stream.wait();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

Rate Measure(const lynx::model::ModelSpec& spec, const std::vector<int64_t>& expert_rows,
             int64_t tokens, int32_t passes) {
  const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  dnnl::stream stream(engine);
  const int64_t hidden = spec.hidden_size;
  const int64_t q = int64_t{spec.query_heads} * spec.head_dim;
  const int64_t qkv = q + int64_t{2} * spec.kv_heads * spec.head_dim;
  std::vector<Product> dense;
  dense.emplace_back(engine, stream, tokens, hidden, qkv);
  dense.emplace_back(engine, stream, tokens, q, hidden);
  std::vector<Product> experts;
  for (int64_t rows : expert_rows) {
    if (rows == 0) continue;
    experts.emplace_back(engine, stream, rows, hidden, 2 * spec.expert_intermediate_size);
    experts.emplace_back(engine, stream, rows, spec.expert_intermediate_size, hidden);
  }
  const auto operations = [](const std::vector<Product>& products) {
    double sum = 0;
    for (const Product& product : products) sum += product.operations();
    return sum;
  };
  std::vector<double> dense_seconds, expert_seconds, seconds;
  for (int32_t pass = -1; pass < passes; ++pass) {
    const double a = Seconds(dense, stream);
    const double b = Seconds(experts, stream);
    if (pass < 0) continue;  // The first makes its scratch memory.
    dense_seconds.push_back(a);
    expert_seconds.push_back(b);
    seconds.push_back(a + b);
  }
  const double d = operations(dense);
  const double e = operations(experts);
  return {.gflop_s = (d + e) / lynx::cli::Quantile(seconds, 0.5) / 1e9,
          .dense_gflop_s = d / lynx::cli::Quantile(dense_seconds, 0.5) / 1e9,
          .expert_gflop_s = e / lynx::cli::Quantile(expert_seconds, 0.5) / 1e9};
}

int Fail(const absl::Status& status) {
  std::cerr << "onednn_rate: " << status.message() << "\n";
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  std::string shape_name = "olmoe-1b-7b";
  std::string trace_file = "models/router-traces/mixed.bin";
  std::vector<std::string> token_counts = {"64", "512"};
  int32_t threads = 0;
  int32_t passes = 9;
  lynx::config::FlagSet flags("onednn_rate", "bf16 rate of oneDNN for one layer of a prefill.");
  flags.AddString("shape", &shape_name, "As of lynx bench");
  flags.AddString("traces", &trace_file, "As of lynx bench");
  flags.AddStrings("tokens", &token_counts, "Prompt tokens");
  flags.AddInt("threads", &threads, {0, 1024}, "Threads; 0: as many as the process may use");
  flags.AddInt("passes", &passes, {1, 1000}, "Passes over the layer");
  const auto outcome = flags.Parse(argc, argv);
  if (!outcome.ok()) return Fail(outcome.status());
  if (*outcome == lynx::config::ParseOutcome::kPrinted) return 0;
  const auto shape = lynx::cli::LoadModelShape(shape_name);
  if (!shape.ok()) return Fail(shape.status());
  const auto traces = lynx::cli::ReadRouterTraces(trace_file);
  if (!traces.ok()) return Fail(traces.status());
  const auto counts = lynx::cli::ParseCounts("--tokens", token_counts, 1 << 16);
  if (!counts.ok()) return Fail(counts.status());
  omp_set_num_threads(threads > 0 ? threads : lynx::kernels::UsableCpus());

  const dnnl_version_t* version = dnnl_version();
  std::cout << absl::StrFormat(
      "{\"onednn\":\"%d.%d.%d\",\"shape\":\"%s\",\"threads\":%d,\"rates\":[", version->major,
      version->minor, version->patch, shape_name, omp_get_max_threads());
  const char* comma = "";
  for (int32_t tokens : *counts) {
    const Rate rate =
        Measure(shape->spec,
                RowsOfExperts(*traces, shape->spec.experts, shape->spec.experts_per_token, tokens),
                tokens, passes);
    std::cout << absl::StrFormat(
        "%s{\"tokens\":%d,\"gflop_s\":%.1f,\"dense_gflop_s\":%.1f,\"expert_gflop_s\":%.1f}", comma,
        tokens, rate.gflop_s, rate.dense_gflop_s, rate.expert_gflop_s);
    comma = ",";
  }
  std::cout << "]}\n";
  return 0;
}
