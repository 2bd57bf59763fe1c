#include "services/cli/plan.h"

#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "services/cli/npy.h"
#include "tests/support/temp_dir.h"

namespace lynx::cli {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;

std::string Npy(const std::string& header, const std::vector<float>& values) {
  std::string bytes("\x93NUMPY\x01\x00", 8);
  bytes.push_back(static_cast<char>(header.size() & 0xFF));
  bytes.push_back(static_cast<char>(header.size() >> 8));
  bytes += header;
  const size_t data = bytes.size();
  bytes.resize(data + values.size() * sizeof(float));
  if (!values.empty()) std::memcpy(bytes.data() + data, values.data(), bytes.size() - data);
  return bytes;
}

std::string Header(const std::string& shape, const std::string& descr = "<f4",
                   const std::string& fortran = "False") {
  return "{'descr': '" + descr + "', 'fortran_order': " + fortran + ", 'shape': " + shape +
         ", }      \n";
}

class PlanTest : public ::testing::Test {
 protected:
  struct Outcome {
    int status;
    std::string out;
    std::string err;
  };

  std::string Write(const std::string& content) {
    const std::string path = (dir_.path() / "logits.npy").string();
    std::ofstream(path, std::ios::binary) << content;
    return path;
  }

  Outcome Plan(std::vector<std::string> arguments, const std::string& content) {
    arguments.push_back("--logits=" + Write(content));
    return Run(arguments);
  }

  static Outcome Run(const std::vector<std::string>& arguments) {
    std::vector<const char*> argv = {"plan"};
    for (const std::string& argument : arguments) argv.push_back(argument.c_str());
    std::ostringstream out;
    std::ostringstream err;
    const int status = RunPlan(static_cast<int>(argv.size()), argv.data(), out, err);
    return {status, out.str(), err.str()};
  }

  Json PlanOf(const std::vector<std::string>& arguments) {
    const Outcome outcome = Plan(arguments, Worked());
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    return Json::parse(outcome.out, nullptr, false);
  }

  static std::string Worked() {
    return Npy(Header("(3, 6)"), {-0.2f, 0.2f, -1.2f, -1.6f, 1.7f, -1.9f, 0.0f, -0.8f, -1.9f, -0.9f,
                                  -1.4f, -0.4f, 1.6f, -1.7f, -0.6f, 0.8f, 0.5f, -1.9f});
  }

  lynx::testing::TempDir dir_;
};

TEST_F(PlanTest, PrintsTheWorkedExample) {
  const Json plan = PlanOf({"--policy=lynx", "--alpha=1", "--beta=2", "--k=2"});
  EXPECT_EQ(plan["active"], Json({0, 3, 4}));
  EXPECT_EQ(plan["exact_active"], 5);
  ASSERT_EQ(plan["rows"].size(), 3u);
  EXPECT_EQ(plan["rows"][0]["ids"], Json({4, 0}));
  EXPECT_EQ(plan["rows"][1]["ids"], Json({0, 3}));
  EXPECT_EQ(plan["rows"][2]["ids"], Json({0, 3}));
  const double weight = plan["rows"][2]["weights"][0];
  EXPECT_NEAR(weight, 1 / (1 + std::exp(-0.8)), 1e-6);
  EXPECT_LT(plan["kept_mass"][0], 1);
  EXPECT_EQ(plan["kept_mass"][2], 1);
  EXPECT_EQ(plan.size(), 4u);
  EXPECT_EQ(PlanOf({"--policy=lynx:alpha=1,beta=2", "--k=2"}), plan);
}

TEST_F(PlanTest, EveryPolicyTakesItsParameters) {
  EXPECT_EQ(PlanOf({"--policy=exact", "--k=2"})["active"], Json({0, 1, 3, 4, 5}));
  EXPECT_EQ(PlanOf({"--policy=prune", "--k0=1", "--k=2"})["rows"][0]["ids"], Json({4}));
  EXPECT_EQ(PlanOf({"--policy=oea", "--k0=1", "--k=2"})["active"], Json({0, 4}));
  EXPECT_EQ(PlanOf({"--policy=vote", "--M=2", "--k=2"})["active"].size(), 2u);
  EXPECT_EQ(PlanOf({"--policy=vote", "--M=2", "--floor=2", "--k=2"})["active"].size(), 5u);
  EXPECT_EQ(PlanOf({"--policy=budget", "--M=3", "--k=2"})["active"].size(), 3u);
  EXPECT_EQ(PlanOf({"--policy=budget", "--fraction=0.5", "--k=2"})["active"].size(), 3u);
  EXPECT_EQ(PlanOf({"--policy=budget", "--coverage=0.01", "--k=2"})["active"].size(), 2u);
  EXPECT_EQ(PlanOf({"--policy=budget", "--row-coverage=1", "--k=2"})["kept_mass"],
            Json({1.0, 1.0, 1.0}));
  EXPECT_EQ(PlanOf({"--policy=marginal", "--lambda=9", "--k=2"})["active"].size(), 2u);
  EXPECT_EQ(PlanOf({"--policy=lynx_compat", "--alpha=1", "--beta=none", "--k=2"})["rows"].size(),
            3u);
  EXPECT_EQ(PlanOf({"--policy=lynx", "--k=2"})["exact_active"], 5);  // The default preset.
}

TEST_F(PlanTest, SaysWhatTheFullestRankHas) {
  const std::vector<std::string> shared = {"--policy=vote", "--M=3", "--k=2", "--ep=2"};
  const Json plan = PlanOf(shared);
  EXPECT_EQ(plan["active"], Json({0, 3, 4}));
  EXPECT_EQ(plan["exact_rank_active"], 3);  // 3, 4 and 5.
  EXPECT_EQ(plan["rank_active"], 2);

  const Outcome many = Plan({"--policy=exact", "--k=2", "--ep=7"}, Worked());
  EXPECT_EQ(many.status, 2);
  EXPECT_THAT(many.err, HasSubstr("--ep: 7 ranks for the 6 experts"));
}

TEST_F(PlanTest, PhaseGateAndMarks) {
  const Json exact = PlanOf({"--policy=exact", "--k=2"});
  const std::vector<std::string> lynx = {"--policy=lynx", "--alpha=1", "--beta=2", "--k=2"};
  const auto with = [&](const std::vector<std::string>& more) {
    std::vector<std::string> arguments = lynx;
    arguments.insert(arguments.end(), more.begin(), more.end());
    return PlanOf(arguments);
  };
  EXPECT_EQ(with({"--phase=prefill"}), exact);
  EXPECT_EQ(with({"--opt-out=1,1,1"}), exact);
  EXPECT_EQ(with({"--opt-out=1,0,0"})["rows"][0], exact["rows"][0]);

  const Json masked = with({"--valid=1,0,1"});
  EXPECT_TRUE(masked["rows"][1].is_null() && masked["kept_mass"][1].is_null());
  EXPECT_EQ(masked["rows"].size(), 3u);
  EXPECT_EQ(masked["exact_active"], 4);

  EXPECT_EQ(with({"--valid=0,0,0"}),
            Json::parse(R"({"active":[],"rows":[null,null,null],"exact_active":0,
                            "kept_mass":[null,null,null]})"));

  const Json kept = with({"--gate=keep-mass"});
  const double sum =
      kept["rows"][1]["weights"][0].get<double>() + kept["rows"][1]["weights"][1].get<double>();
  EXPECT_LT(sum, 0.7);
  EXPECT_EQ(kept["rows"][1]["ids"], Json({0, 3}));
}

TEST_F(PlanTest, BadArgumentsAreNamed) {
  const struct {
    std::vector<std::string> arguments;
    const char* error;
  } cases[] = {
      {{"--policy=lynx"}, "--k is missing"},
      {{"--policy=lnyx", "--k=2"}, "no policy 'lnyx'"},
      {{"--policy=auto", "--k=2"}, "policy auto"},
      {{"--policy=lynx", "--k=2", "--alpha=-1"}, "alpha is '-1'"},
      {{"--policy=lynx", "--k=2", "--beta=-1"}, "beta is '-1'"},
      {{"--policy=lynx", "--k=2", "--floor=3"}, "floor is '3': must be in [0, 2]"},
      {{"--policy=lynx:alpha=1", "--k=2", "--alpha=1"}, "alpha is given twice"},
      {{"--policy=oea", "--k=2", "--alpha=1"}, "oea takes no 'alpha'"},
      {{"--policy=vote", "--k=2", "--M=1"}, "M is '1': must be in [2, 6]"},
      {{"--policy=vote", "--k=2", "--M=7"}, "M is '7'"},
      {{"--policy=exact", "--k=7"}, "--k is 7, but the logits are of 6 experts"},
      {{"--policy=exact", "--k=2", "--valid=1,1"}, "--valid has 2 marks for 3 rows"},
      {{"--policy=exact", "--k=2", "--opt-out=1,1,2"}, "--opt-out: '2' is not 0 or 1"},
      {{"--policy=exact", "--k=2", "--gate=x"}, "gate"},
      {{"--policy=exact", "--k=2", "--phase=mixed"}, "phase"},
  };
  for (const auto& test : cases) {
    const Outcome outcome = Plan(test.arguments, Worked());
    EXPECT_EQ(outcome.status, 2) << test.error;
    EXPECT_THAT(outcome.err, HasSubstr(test.error));
    EXPECT_EQ(outcome.out, "");
  }
  const Outcome no_file = Run({"--policy=exact", "--k=2"});
  EXPECT_EQ(no_file.status, 2);
  EXPECT_THAT(no_file.err, HasSubstr("--logits is missing"));
}

TEST_F(PlanTest, BadRowsEndItAndAreNamed) {
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    const Outcome outcome =
        Plan({"--policy=lynx", "--k=2"}, Npy(Header("(2, 3)"), {1, 2, 3, 1, bad, 3}));
    EXPECT_EQ(outcome.status, 1);
    EXPECT_THAT(outcome.err, HasSubstr("row 1 has a logit that is NaN or +Inf"));
    EXPECT_EQ(outcome.out, "");
  }
  constexpr float kMasked = -std::numeric_limits<float>::infinity();
  const std::string one_usable = Npy(Header("(2, 3)"), {kMasked, 2, kMasked, 1, 2, 3});
  EXPECT_THAT(Plan({"--policy=exact", "--k=2"}, one_usable).err, HasSubstr("row 0"));
  // Padding may hold anything.
  EXPECT_EQ(Plan({"--policy=exact", "--k=2", "--valid=0,1"}, one_usable).status, 0);
  EXPECT_EQ(Plan({"--policy=exact", "--k=1"}, one_usable).status, 0);
}

TEST_F(PlanTest, NoRowsMakeAnEmptyPlan) {
  const Outcome outcome = Plan({"--policy=lynx", "--k=2"}, Npy(Header("(0, 6)"), {}));
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(Json::parse(outcome.out, nullptr, false)["rows"], Json::array());
}

TEST_F(PlanTest, FilesThatAreNotWhatTheyShouldBeAreNamed) {
  const std::string good = Worked();
  std::string version = good;
  version[6] = 9;
  const struct {
    std::string content;
    const char* error;
  } cases[] = {
      {"", "no NumPy magic"},
      {"PK\x03\x04", "no NumPy magic"},
      {good.substr(0, 7), "truncated in the header"},
      {good.substr(0, 9), "truncated in the header"},
      {good.substr(0, 40), "truncated in the header"},
      {version, "version 9.0 is unknown"},
      {good.substr(0, good.size() - 1), "the data has 71 bytes"},
      {good + "x", "the data has 73 bytes"},
      {Npy(Header("(3, 6)", "<f8"), {}), "'<f8'; wanted little-endian float32"},
      {Npy(Header("(3, 6)", ">f4"), {}), "'>f4'"},
      {Npy(Header("(3, 6)", "<f4", "True"), {}), "Fortran order"},
      {Npy(Header("(6,)"), {1, 2, 3, 4, 5, 6}), "1 dimensions; wanted two"},
      {Npy(Header("()"), {1}), "0 dimensions"},
      {Npy(Header("(1, 2, 3)"), {}), "3 dimensions"},
      {Npy(Header("(3, 0)"), {}), "the rows are empty"},
      {Npy(Header("(4294967296, 4294967296)"), {}), "which is not what the shape"},
      {Npy(Header("(99999999999999999999999, 1)"), {}), "malformed"},
      {Npy(Header("(-1, 2)"), {}), "malformed"},
      {Npy(Header("(1, 2"), {}), "malformed"},
      {Npy("", {}), "malformed"},
      {Npy("{'descr': '<f4'}", {}), "malformed"},
      {Npy("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1, 1)}", {}), "structures"},
      {Npy("{'descr': '<f4', 'fortran_order': 0, 'shape': (1, 1)}", {}), "malformed"},
      {Npy(Header("(3, 6)") + "x", {}), "malformed"},
  };
  for (const auto& test : cases) {
    const Outcome outcome = Plan({"--policy=exact", "--k=2"}, test.content);
    EXPECT_EQ(outcome.status, 1) << test.error;
    EXPECT_THAT(outcome.err, HasSubstr(test.error));
    EXPECT_THAT(outcome.err, HasSubstr("logits.npy"));
  }
  const Outcome missing = Run({"--policy=exact", "--k=2", "--logits=/no/such.npy"});
  EXPECT_EQ(missing.status, 1);
  EXPECT_THAT(missing.err, HasSubstr("/no/such.npy"));
}

// Any prefix of a file, and any byte of its header changed, is answered.
TEST(NpyTest, HostileBytesAreAnswered) {
  const std::string good = Npy(Header("(2, 3)"), {1, 2, 3, 4, 5, 6});
  ASSERT_TRUE(ParseNpy(good).ok());
  EXPECT_EQ(ParseNpy(good)->values, (std::vector<float>{1, 2, 3, 4, 5, 6}));
  for (size_t length = 0; length < good.size(); ++length) {
    EXPECT_FALSE(ParseNpy(good.substr(0, length)).ok()) << length;
  }
  for (size_t i = 0; i + 24 < good.size(); ++i) {
    for (int value = 0; value < 256; ++value) {
      std::string bad = good;
      bad[i] = static_cast<char>(value);
      const absl::StatusOr<FloatMatrix> matrix = ParseNpy(bad);
      if (matrix.ok()) {
        EXPECT_EQ(matrix->rows * matrix->columns, 6u);
      }
    }
  }
}

}  // namespace
}  // namespace lynx::cli
