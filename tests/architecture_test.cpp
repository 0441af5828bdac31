// SPDX-License-Identifier: Apache-2.0
// Holds every #include of src/ to the order of the folders: a folder may include itself and those
// it is allowed below.
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace {

namespace fs = std::filesystem;

/// folder -> folders it may include, beside itself.
const std::map<std::string, std::set<std::string>>& allowed_includes() {
  static const std::map<std::string, std::set<std::string>> table{
      {"base", {}},
      {"tensor", {"base"}},
      {"sampling", {"base", "tensor"}},
      {"ops", {"base", "tensor", "sampling"}},
      {"cpu", {"base", "tensor", "sampling", "ops"}},
      {"comm", {"base", "tensor", "sampling", "ops"}},
      {"cuda", {"base", "tensor", "sampling", "ops", "comm"}},
      {"checkpoint", {"base", "tensor"}},
      {"kvcache", {"base"}},
      {"plan", {"base", "sampling"}},
      {"scheduler", {"base", "plan", "kvcache", "sampling"}},
      {"model", {"base", "tensor", "sampling", "ops", "comm", "checkpoint"}},
      {"worker",
       {"base", "tensor", "sampling", "ops", "cpu", "cuda", "comm", "checkpoint", "model", "plan"}},
      {"tokenizer", {"base"}},
      {"grammar", {"base", "tokenizer"}},
      {"engine",
       {"base", "sampling", "ops", "comm", "model", "plan", "kvcache", "scheduler", "worker",
        "tokenizer", "grammar"}},
      {"chat", {"base", "tokenizer"}},
      {"api",
       {"base", "sampling", "tokenizer", "kvcache", "scheduler", "grammar", "engine", "chat"}},
      {"runtime",
       {"base", "tensor", "sampling", "ops", "comm", "checkpoint", "plan", "scheduler", "model",
        "worker", "tokenizer", "grammar", "engine", "chat"}},
      {"server",
       {"base", "sampling", "tokenizer", "grammar", "engine", "chat", "model", "scheduler",
        "kvcache", "worker", "runtime", "api"}},
      {"capi",
       {"base", "tensor", "sampling", "scheduler", "model", "engine", "chat", "runtime", "api",
        "server"}},
      {"app", {"base",       "tensor",  "sampling", "ops",       "cpu",   "cuda",   "comm",
               "checkpoint", "kvcache", "plan",     "scheduler", "model", "worker", "tokenizer",
               "grammar",    "engine",  "chat",     "runtime",   "api",   "server"}},
  };
  return table;
}

struct Include {
  fs::path file;
  int line = 0;
  std::string folder;  // where the file lies
  std::string target;  // first part of the included path
};

std::vector<Include> includes_of(const fs::path& root) {
  std::vector<Include> found;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(root)) {
    const std::string extension = entry.path().extension().string();
    if (extension != ".h" && extension != ".cpp" && extension != ".cu" && extension != ".cuh")
      continue;
    std::ifstream file(entry.path());
    std::string line;
    for (int number = 1; std::getline(file, line); ++number) {
      if (line.rfind("#include \"", 0) != 0) continue;
      const std::size_t begin = line.find('"') + 1;
      const std::string path = line.substr(begin, line.find('"', begin) - begin);
      const std::string folder = fs::relative(entry.path(), root).begin()->string();
      found.push_back({entry.path(), number, folder, fs::path(path).begin()->string()});
    }
  }
  return found;
}

bool is_test(const fs::path& file) {
  return file.stem().string().ends_with("_test");
}

TEST(Architecture, EveryFolderIsInTheTable) {
  for (const fs::directory_entry& entry :
       fs::directory_iterator(fs::path(KOHO_SOURCE_DIR) / "src")) {
    if (!entry.is_directory()) continue;
    EXPECT_TRUE(allowed_includes().contains(entry.path().filename().string())) << entry.path();
  }
}

TEST(Architecture, IncludesFollowTheOrderOfTheFolders) {
  const std::vector<Include> includes = includes_of(fs::path(KOHO_SOURCE_DIR) / "src");
  ASSERT_GT(includes.size(), 20U) << "the sources were not found";
  for (const Include& include : includes) {
    if (is_test(include.file)) continue;
    if (include.target == "koho") continue;  // include/koho/engine.h
    const auto folder = allowed_includes().find(include.folder);
    ASSERT_NE(folder, allowed_includes().end()) << include.folder;
    EXPECT_TRUE(include.target == include.folder || folder->second.contains(include.target))
        << include.file << ":" << include.line << ": " << include.folder << " may not include "
        << include.target;
  }
}

TEST(Architecture, TheTableHasNoCycle) {
  // Taking away folders that depend on nothing left must take away all.
  std::map<std::string, std::set<std::string>> left = allowed_includes();
  while (!left.empty()) {
    std::vector<std::string> leaves;
    for (const auto& [folder, below] : left)
      if (below.empty()) leaves.push_back(folder);
    ASSERT_FALSE(leaves.empty()) << "a cycle among " << left.size() << " folders, one is "
                                 << left.begin()->first;
    for (const std::string& leaf : leaves) left.erase(leaf);
    for (auto& [folder, below] : left)
      for (const std::string& leaf : leaves) below.erase(leaf);
  }
}

TEST(Architecture, CudaAndNcclHeadersStayInTheirFolders) {
  for (const fs::directory_entry& entry :
       fs::recursive_directory_iterator(fs::path(KOHO_SOURCE_DIR) / "src")) {
    if (!entry.is_regular_file()) continue;
    const std::string folder =
        fs::relative(entry.path(), fs::path(KOHO_SOURCE_DIR) / "src").begin()->string();
    if (folder == "cuda" || folder == "comm") continue;
    std::ifstream file(entry.path());
    std::string line;
    while (std::getline(file, line)) {
      EXPECT_FALSE(line.rfind("#include <cuda", 0) == 0 || line.rfind("#include <nccl", 0) == 0 ||
                   line.rfind("#include <cublas", 0) == 0 || line.rfind("#include <cudnn", 0) == 0)
          << entry.path() << ": " << line;
    }
  }
}

}  // namespace
