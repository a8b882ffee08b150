// SPDX-License-Identifier: Apache-2.0
// Weights and token files that are malformed, or of another model: exit status 2, naming what is
// wrong, through the real programs.
#include <cstdint>
#include <cstring>
#include <functional>

#include "gmock/gmock.h"
#include "tests/integration/command.h"

namespace takt::integration {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

// A copy of a golden model's folder, a token file for it, and verbs that spoil them.
class Files {
 public:
  Files() {
    const fs::path golden = fs::path(TAKT_SOURCE_DIR) / "tests/golden/models/gpt2-tiny";
    fs::create_directory(directory_.Path("model"));
    for (const char* name : {"config.json", "model.safetensors"}) {
      fs::copy_file(golden / name, directory_.Path(absl::StrCat("model/", name)));
    }
    fs::copy_file(golden / "tokens.bin", directory_.Path("tokens.bin"));
  }

  // The first occurrence, which must be there.
  void Replace(const std::string& name, const std::string& from, const std::string& to) {
    std::string text = ReadFile(directory_.Path(name));
    const std::size_t place = text.find(from);
    ASSERT_NE(place, std::string::npos) << name << " has no " << from;
    directory_.Write(name, text.replace(place, from.size(), to));
  }
  void Overwrite(const std::string& name, const std::string& beginning) {
    std::string text = ReadFile(directory_.Path(name));
    directory_.Write(name, text.replace(0, beginning.size(), beginning));
  }
  void Truncate(const std::string& name, std::uintmax_t bytes) {
    fs::resize_file(directory_.Path(name), bytes);
  }
  // An index of the two tables, and the file under the name of a shard.
  void Shard(const std::string& wte, const std::string& wpe) {
    fs::rename(directory_.Path("model/model.safetensors"), directory_.Path("model/shard"));
    directory_.Write("model/model.safetensors.index.json",
                     absl::StrCat(R"({"weight_map": {"transformer.wte.weight": ")", wte,
                                  R"(", "transformer.wpe.weight": ")", wpe, R"("}})"));
  }
  void Write(const std::string& name, const std::string& text) { directory_.Write(name, text); }
  // An llm.c shard whose header says this.
  void WriteLlmc(std::int32_t magic, std::int32_t version, std::int32_t tokens) {
    std::string shard(1024 + 2 * 1000, '\0');
    const std::int32_t header[] = {magic, version, tokens};
    std::memcpy(shard.data(), header, sizeof header);
    directory_.Write("tokens.bin", shard);
  }

  // An index of one document of so many u16 tokens beside tokens.bin.
  void WriteMegatronIndex(std::int32_t tokens) {
    std::string index("MMIDIDX\0\0", 9);
    const auto append = [&index](auto number) {
      index.append(reinterpret_cast<const char*>(&number), sizeof number);
    };
    append(std::uint64_t{1});  // version
    append(std::uint8_t{8});   // u16
    append(std::uint64_t{1});  // sequences
    append(std::uint64_t{2});  // bounds of documents
    append(tokens);
    append(std::int64_t{0});  // where the sequence begins
    append(std::int64_t{0});
    append(std::int64_t{1});
    directory_.Write("tokens.idx", index);
  }

  std::string Job(const std::string& format) const {
    return directory_.Write("job.yaml", absl::StrCat("name: bad\n"
                                                     "model: {init_from: model}\n"
                                                     "data: {train: {path: tokens.bin, format: ",
                                                     format,
                                                     "}}\n"
                                                     "batch: {global: 8, microbatch: 2}\n"
                                                     "steps: 1\n"
                                                     "parallelism: {pipeline: 1, data: 1}\n"));
  }
  std::string state() const { return directory_.Path("state"); }

 private:
  const TestDirectory directory_;
};

struct Case {
  const char* name;
  std::function<void(Files&)> spoil;
  std::vector<std::string> mentioned;
  const char* format = "uint16";
};

std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.name; }

class BadFiles : public testing::TestWithParam<Case> {};

TEST_P(BadFiles, ExitWith2AndAreNamed) {
  Files files;
  GetParam().spoil(files);
  Command run("takt", {"local", "run", files.Job(GetParam().format), "--state", files.state()});
  EXPECT_EQ(run.Wait(), "exit status 2") << run.out() << run.err();
  EXPECT_EQ(run.out(), "");
  for (const std::string& text : GetParam().mentioned) EXPECT_THAT(run.err(), HasSubstr(text));
}

constexpr char kWeights[] = "model/model.safetensors";
constexpr char kConfig[] = "model/config.json";

const Case kCases[] = {
    {"ConfigWithAMissingKey",
     [](Files& f) { f.Replace(kConfig, "\"n_head\"", "\"n_hand\""); },
     {"config.json: n_head: is missing"}},
    {"ConfigWithAMistypedValue",
     [](Files& f) { f.Replace(kConfig, "\"n_layer\": 4", "\"n_layer\": \"four\""); },
     {"config.json: n_layer is \"four\": must be a whole number"}},
    {"ConfigWithAnotherActivation",
     [](Files& f) { f.Replace(kConfig, "gelu_new", "relu"); },
     {"activation_function is \"relu\"", "is not supported"}},
    {"ConfigThatIsNoJson",
     [](Files& f) { f.Truncate(kConfig, 50); },
     {"must be a JSON object", "the file ends before it does"}},
    {"HeaderLengthOf2To63",
     [](Files& f) { f.Overwrite(kWeights, std::string(7, '\0') + '\x80'); },
     {"model.init_from", "header length 9223372036854775808 is too large"}},
    {"TruncatedWeights",
     [](Files& f) { f.Truncate(kWeights, 100'000); },
     {"model.init_from", "the file ends before it does"}},
    {"TensorGivenTwice",
     [](Files& f) { f.Replace(kWeights, "h.0.ln_1.weight", "h.0.ln_2.weight"); },
     {"has \"transformer.h.0.ln_2.weight\" twice"}},
    {"TensorsThatOverlap",
     [](Files& f) { f.Replace(kWeights, "\"data_offsets\":[768,", "\"data_offsets\":[468,"); },
     {"begins at 468 where 768 was expected"}},
    {"NameThatIsNoUtf8",
     [](Files& f) { f.Replace(kWeights, "transformer.wte", "transf\xffrmer.wte"); },
     {"the header is not JSON"}},
    {"MissingTensor",
     [](Files& f) { f.Replace(kWeights, "ln_f.bias", "ln_f.bees"); },
     {"must hold transformer.ln_f.bias"}},
    {"TensorOfAnotherDtype",
     [](Files& f) { f.Replace(kWeights, "{\"dtype\":\"F32\"", "{\"dtype\":\"I32\""); },
     {"must be F32, BF16 or F16 of shape [192], it is I32 of shape [192]"}},
    {"TensorOfAnotherShape",
     [](Files& f) { f.Replace(kConfig, "\"n_inner\": null", "\"n_inner\": 128"); },
     {"must be F32, BF16 or F16 of shape [64,128], it is F32 of shape [64,256]"}},
    {"NoWeights",
     [](Files& f) {
       f.Shard("shard", "shard");
       f.Replace("model/model.safetensors.index.json", "weight_map", "weight_mop");
     },
     {"model.safetensors.index.json: weight_map is missing"}},
    {"IndexThatNamesAnAbsentShard",
     [](Files& f) { f.Shard("shard", "absent"); },
     {"names absent, which is not in the folder"}},
    {"IndexThatLeadsOutOfTheFolder",
     [](Files& f) { f.Shard("shard", "../shard"); },
     {"is in \"../shard\", which must be a file of the same folder"}},
    {"IndexThatPutsATensorIntoAnotherShard",
     [](Files& f) {
       f.Shard("shard", "shard");
       f.Replace("model/shard", "wpe.weight", "wpe.weighs");
     },
     {"says that shard holds transformer.wpe.weight, which it does not"}},
    {"UnsignedShortsOfOddSize",
     [](Files& f) { f.Truncate("tokens.bin", 4097); },
     {"data.train.path", "tokens.bin: has 4097 bytes"}},
    {"VocabularyTooSmall",
     [](Files& f) { f.Write("tokens.bin", std::string(4096, '\x7f')); },
     {"data.train.path", "32639", "255"}},
    {"LlmcOfAnotherMagic", [](Files& f) { f.WriteLlmc(1, 1, 1000); }, {"magic"}, "llmc"},
    {"MegatronWhoseIndexDoesNotMatch",
     [](Files& f) { f.WriteMegatronIndex(1'000'000); },
     {"data.train.path", "sequence 0 of 1000000 uint16 tokens", "the data has 5122 bytes"},
     "megatron"},
    {"LlmcThatIsTruncated", [](Files& f) { f.WriteLlmc(20240520, 1, 5000); }, {"5000"}, "llmc"},
};

INSTANTIATE_TEST_SUITE_P(All, BadFiles, testing::ValuesIn(kCases),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace takt::integration
