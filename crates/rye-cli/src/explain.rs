//! The pages behind error codes, inside the binary.

macro_rules! pages {
    ($($code:literal)*) => {
        /// Code and page.
        pub const PAGES: &[(&str, &str)] = &[
            $(($code, include_str!(concat!("../../../docs/errors/", $code, ".md"))),)*
        ];
    };
}

pages! {
    "RYE0101" "RYE0102" "RYE0103" "RYE0104" "RYE0105" "RYE0106" "RYE0107" "RYE0108"
    "RYE0201" "RYE0202" "RYE0203" "RYE0204" "RYE0205" "RYE0206"
    "RYE0301" "RYE0302"
    "RYE0310" "RYE0311" "RYE0312" "RYE0313" "RYE0314" "RYE0315"
    "RYE0401" "RYE0402" "RYE0403" "RYE0404" "RYE0405" "RYE0406"
    "RYE0411" "RYE0412" "RYE0413" "RYE0414" "RYE0415" "RYE0416" "RYE0417" "RYE0418" "RYE0419" "RYE0420"
    "RYE0501" "RYE0502" "RYE0503" "RYE0504" "RYE0505" "RYE0506"
    "RYE0601" "RYE0602" "RYE0603" "RYE0604" "RYE0605"
    "RYE0611" "RYE0612" "RYE0613" "RYE0614" "RYE0615" "RYE0616" "RYE0617" "RYE0618"
    "RYE0621" "RYE0622" "RYE0623" "RYE0624" "RYE0625" "RYE0626"
    "RYE0631" "RYE0632" "RYE0633" "RYE0634" "RYE0635"
    "RYE0701"
    "RYE0801" "RYE0802" "RYE0803" "RYE0804" "RYE0805" "RYE0806" "RYE0807" "RYE0808" "RYE0809"
    "RYE0901" "RYE0902" "RYE0903" "RYE0904" "RYE0905"
    "RYE1001" "RYE1002" "RYE1003" "RYE1004" "RYE1005" "RYE1006" "RYE1007" "RYE1008" "RYE1009" "RYE1010"
    "RYE1121" "RYE1122" "RYE1123" "RYE1124" "RYE1125" "RYE1126" "RYE1127"
    "RYE1131" "RYE1132" "RYE1133" "RYE1134" "RYE1135" "RYE1136" "RYE1141"
    "RYE1101"
    "RYE1111" "RYE1112" "RYE1113" "RYE1114" "RYE1115" "RYE1116" "RYE1117" "RYE1118" "RYE1119"
    "RYE1151" "RYE1152" "RYE1153" "RYE1154" "RYE1155" "RYE1156" "RYE1157" "RYE1158" "RYE1159" "RYE1161" "RYE1162"
    "RYE1163" "RYE1164" "RYE1165"
}

/// The page of a code, however it is written: `RYE0402`, `rye0402`, `402`.
pub fn find_page(code: &str) -> Option<(&'static str, &'static str)> {
    let digits = code.trim_start_matches(['r', 'R', 'y', 'Y', 'e', 'E']);
    let wanted = format!("RYE{digits:0>4}");
    PAGES.iter().find(|(known, _)| *known == wanted).copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rye_engine::Code;

    #[test]
    fn every_code_has_exactly_one_page() {
        let codes: Vec<_> = Code::ALL.iter().map(|code| code.as_str()).collect();
        let pages: Vec<_> = PAGES.iter().map(|(code, _)| *code).collect();
        assert_eq!(codes, pages);
        for (code, page) in PAGES {
            assert!(page.starts_with(&format!("# {code}: ")), "{code}");
        }
        let files = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/errors"))
            .expect("pages")
            .count();
        assert_eq!(files, PAGES.len());
    }

    #[test]
    fn short_codes_are_accepted() {
        for code in ["RYE0402", "rye0402", "402", "0402"] {
            assert_eq!(find_page(code).map(|(code, _)| code), Some("RYE0402"), "{code}");
        }
        assert_eq!(find_page("nonsense"), None);
    }
}
