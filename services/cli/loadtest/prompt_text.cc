#include "services/cli/loadtest/prompt_text.h"

#include <algorithm>
#include <cmath>
#include <string_view>
#include <vector>

namespace lynx::loadtest {
namespace {

constexpr std::string_view kText =
    "able about above across after again against ago air all almost alone along already also "
    "always among amount and animal another answer any appear apple area arm army around arrive "
    "art ask autumn baby back bad ball bank base basic basket bath beach bear beautiful because "
    "become bed before begin behind believe bell below best better between big bird birth black "
    "blood blow blue board boat body bone book both bottle bottom box boy branch bread break "
    "bridge bright bring brother brown build burn business but buy call camp can captain car "
    "card care carry case cat catch cause cell center century certain chair chance change check "
    "child choose church circle city class clean clear climb clock close cloth cloud coast coat "
    "cold collect color come common company complete consider contain control cook cool copper "
    "copy corn corner correct cost cotton could count country course cover create cross crowd "
    "cry current cut dance danger dark daughter day dead deal dear decide deep degree desert "
    "design develop did differ difficult dinner direct distance divide doctor dog door double "
    "down draw dream dress drink drive drop dry during each early earth east easy eat edge "
    "effect egg eight either electric end enemy energy engine enough enter equal especially "
    "even evening event ever every exact example except exercise expect experience eye face "
    "fact fair fall family famous far farm fast father favor fear feed feel few field fight "
    "figure fill final find fine finger finish fire first fish five flat floor flow flower fly "
    "follow food foot for force forest form forward found four free fresh friend from front "
    "fruit full garden gas gave general gentle get girl give glad glass gold good got govern "
    "grand grass gray great green ground group grow guess guide had hair half hand happen happy "
    "hard hat have head hear heart heat heavy help her here high hill his history hold hole "
    "home hope horse hot hour house how huge human hundred hunt ice idea imagine inch include "
    "indicate industry insect instant iron island job join jump just keep key kind king knew "
    "know lady lake land language large last late laugh law lay lead learn least leave left leg "
    "length less let letter level lie life lift light like line list listen little live long "
    "look lost lot loud love low machine main major make man many map mark market mass master "
    "match material matter may mean measure meat meet melody men metal method middle might mile "
    "milk million mind mine minute miss modern moment money month moon more morning most mother "
    "motion mount mountain mouth move much multiply music must name nation natural nature near "
    "neck need neighbor never new next night nine noise noon north nose note nothing notice "
    "noun now number object observe ocean offer office often old once one only open opposite "
    "orange order organ original other our out over own oxygen page paint pair paper part pass "
    "past path pattern pay people perhaps period person piece place plain plan plane planet "
    "plant play please point poor port position possible post pound power practice prepare "
    "present press pretty print problem process produce product proper protect prove provide "
    "pull push put quart question quick quiet quite race radio rail rain raise ran range rather "
    "reach read ready real reason receive record red region remember repeat reply represent "
    "require rest result rich ride right ring rise river road rock roll room root rope rose "
    "round row rule run safe said sail salt same sand save say scale school science score sea "
    "search season seat second section see seed seem segment select self sell send sense "
    "sentence separate serve set settle seven several shape share sharp sheet ship shoe shop "
    "shore short should shoulder show side sight sign silent silver similar simple since sing "
    "single sister sit six size skill skin sky sleep slow small smell smile snow soft soil "
    "soldier solution some son song soon sound south space speak special speech speed spend "
    "spot spread spring square stand star start state station stay steam steel step stick still "
    "stone stood stop store story straight strange stream street strong student study subject "
    "success such sudden sugar suit summer sun supply support sure surface surprise swim symbol "
    "system table tail take talk tall teach team teeth tell temperature ten term test than "
    "thank that the their them then there these they thick thin thing think third this those "
    "though thought thousand three through throw time tire together told tone tool top total "
    "touch toward town track trade train travel tree triangle trip trouble truck true try tube "
    "turn twenty two type under unit until upon use usual valley value very view village visit "
    "voice vowel wait walk wall want war warm wash watch water wave way wear weather week "
    "weight well west wheel when where which while white who whole why wide wife wild will win "
    "wind window wing winter wire wish with woman wonder wood word work world would write yard "
    "year yellow yes yet young ";

const std::vector<std::string_view>& Words() {
  static const auto* const words = [] {
    auto* all = new std::vector<std::string_view>();
    for (size_t at = 0; at < kText.size();) {
      const size_t end = kText.find(' ', at);
      all->push_back(kText.substr(at, end - at));
      at = end + 1;
    }
    return all;
  }();
  return *words;
}

}  // namespace

std::string RandomWords(Random& random, int64_t words) {
  std::string text;
  text.reserve(static_cast<size_t>(words) * 6);
  for (int64_t i = 0; i < words; ++i) {
    if (i > 0) text += ' ';
    text += Words()[static_cast<size_t>(random.Below(Words().size()))];
  }
  return text;
}

int64_t TokenScale::WordsFor(int64_t tokens) const {
  return std::max<int64_t>(1, std::llround((static_cast<double>(tokens) - fixed) / per_word));
}

int64_t TokenScale::WordsWithin(int64_t tokens) const {
  return std::llround(static_cast<double>(tokens) / per_word);
}

TokenScale FitScale(int64_t few, int64_t few_tokens, int64_t many, int64_t many_tokens) {
  // A server that counts nonsense must not make prompts of a billion words.
  const double per_word = std::clamp(
      static_cast<double>(many_tokens - few_tokens) / static_cast<double>(many - few), 0.25, 16.0);
  const double fixed = static_cast<double>(few_tokens) - per_word * static_cast<double>(few);
  return {.fixed = std::clamp(fixed, 0.0, static_cast<double>(few_tokens)), .per_word = per_word};
}

}  // namespace lynx::loadtest
