// The figures of a program: a line each, and a JSON file that is whole after each of them.
#pragma once

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "options.hpp"

namespace mori::bench {

class Report {
 public:
  Report(std::string library, std::string path)
      : library_(std::move(library)), path_(std::move(path)) {}

  void Add(const std::string& name, const char* unit, std::vector<double> values) {
    std::string text;
    for (const double value : values) text += (text.empty() ? "" : ", ") + Number(value);
    lines_ += (lines_.empty() ? "" : ",\n");
    lines_ +=
        "  {\"name\": \"" + name + "\", \"unit\": \"" + unit + "\", \"values\": [" + text + "]}";
    if (!path_.empty()) Write();

    std::sort(values.begin(), values.end());
    std::printf("%-10s %-26s %10.4g %-4s (%.4g-%.4g)\n", library_.c_str(), name.c_str(),
                values[values.size() / 2], unit, values.front(), values.back());
    std::fflush(stdout);
  }
  void Fact(const std::string& name, const std::string& value) {
    facts_ += "\"" + name + "\": \"" + value + "\",\n";
  }

 private:
  static std::string Number(double value) {
    char text[32];
    std::snprintf(text, sizeof text, "%.6g", value);
    return text;
  }
  void Write() const {
    std::FILE* file = std::fopen(path_.c_str(), "w");
    Require(file != nullptr, "cannot write " + path_);
    std::fprintf(file, "{\"library\": \"%s\",\n%s\"figures\": [\n%s\n]}\n", library_.c_str(),
                 facts_.c_str(), lines_.c_str());
    std::fclose(file);
  }

  std::string library_;
  std::string path_;
  std::string facts_;
  std::string lines_;
};

}  // namespace mori::bench
