CREATE TABLE meta (
    name VARCHAR(40) NOT NULL,
    value VARCHAR(200) NOT NULL,
    PRIMARY KEY (name)
);
INSERT INTO meta VALUES('schema','2');
INSERT INTO meta VALUES('key_check','5b583ae806edcc46d07e1265841e631b');
INSERT INTO meta VALUES('epoch','2');
CREATE TABLE policies (
    id INTEGER NOT NULL,
    created_at VARCHAR(20) NOT NULL,
    settings TEXT NOT NULL,
    PRIMARY KEY (id)
);
INSERT INTO policies VALUES(1,'2026-01-01T00:00:00Z','{"composition": "exact", "delta": 1e-05, "epsilon": 3.0, "max_labels_per_labeler": null, "mechanism": "statistic", "releases": 3, "tie_status_public": false, "ties": "zero", "unit": "labeler"}');
CREATE TABLE prices (
    policy_id INTEGER NOT NULL,
    k BIGINT NOT NULL,
    price VARCHAR(20) NOT NULL,
    PRIMARY KEY (policy_id, k),
    FOREIGN KEY(policy_id) REFERENCES policies (id)
);
INSERT INTO prices VALUES(1,3,'2648389199691');
CREATE TABLE labelers (
    labeler BLOB NOT NULL,
    capacity BIGINT NOT NULL,
    used BIGINT NOT NULL,
    PRIMARY KEY (labeler),
    CONSTRAINT allowance CHECK (used >= 0 AND used <= capacity)
);
INSERT INTO labelers VALUES(X'0D8E2AFFC997AEEC54CD9D08CC40C721',3,2);
INSERT INTO labelers VALUES(X'33773B5B6F7DE6B2AB2EA2C990DE12FA',3,2);
INSERT INTO labelers VALUES(X'9CEA67AE47F923C09B0FC413DE298CB5',3,2);
INSERT INTO labelers VALUES(X'EB28B71529A30B566C8A08E404A56952',3,2);
CREATE TABLE releases (
    id VARCHAR(40) NOT NULL,
    number INTEGER NOT NULL,
    idempotency_key VARCHAR(64) NOT NULL,
    policy_id INTEGER NOT NULL,
    state VARCHAR(12) NOT NULL,
    created_at VARCHAR(20) NOT NULL,
    settings TEXT NOT NULL,
    charged BIGINT NOT NULL,
    rows BIGINT,
    files TEXT,
    seal VARCHAR(64),
    PRIMARY KEY (id),
    UNIQUE (number),
    FOREIGN KEY(policy_id) REFERENCES policies (id)
);
INSERT INTO releases VALUES('r0001-70c26955',1,'70c2695594ebbbca5b0038bf1f6a80f0212c0588be0f4108bee8e59617f3be78',1,'committed','2026-01-01T00:00:00Z','{"again": 0, "drawn": 24, "dropped_by_bound": 0, "duplicates": 0, "exhausted": "refuse", "format": 1, "labelers": 4, "mechanism": "statistic", "mechanism_version": 1, "parameters": {"first": null, "identity": "length log1p(characters)", "shape": {"clip_quantile": 0.5, "components": 1, "floor": 0.001, "ridge": 1.0, "whitening": 0.5}}, "request": {"agreement": 0.73, "clip_quantile": 0.5, "components": 1, "composition": null, "delta": 1e-05, "epsilon": 3.0, "features": "length", "floor": 0.001, "max_labels_per_labeler": null, "mechanism": "statistic", "releases": 3, "ridge": 1.0, "tie_status_public": null, "ties": null, "unit": null, "whitening": 0.5}, "rows_planned": 24}',4,24,'{"CARD.md": "ed180638c7d54934b569c17dae6a1d07c8aaf5b9ca234458cc59b8ffdb46cbd0", "card.json": "2567850d7b60eda6a190f346804ef22ef11bbdf64c3daab3c0da23324657e8ae", "data.parquet": "26f025934c04e60f76bcd38dfbed04c72511b35d602dcc40d86eff98218e618e", "head.npz": "489c48fe960d80691ce82619be36cc2ac9c9e35d1e6bf49b06f0c57697d29de7"}',NULL);
INSERT INTO releases VALUES('r0002-48fc1952',2,'48fc1952f550ca4f2931cddf0a6435212b247b9962b3b3faae4896c845e9558d',1,'computing','2026-01-01T00:00:00Z','{"again": 1, "drawn": 16, "dropped_by_bound": 0, "duplicates": 0, "exhausted": "refuse", "format": 1, "labelers": 4, "mechanism": "statistic", "mechanism_version": 1, "parameters": {"first": null, "identity": "length log1p(characters)", "shape": {"clip_quantile": 0.5, "components": 1, "floor": 0.001, "ridge": 1.0, "whitening": 0.5}}, "request": {"agreement": 0.73, "clip_quantile": 0.5, "components": 1, "composition": null, "delta": 1e-05, "epsilon": 3.0, "features": "length", "floor": 0.001, "max_labels_per_labeler": null, "mechanism": "statistic", "releases": 3, "ridge": 1.0, "tie_status_public": null, "ties": null, "unit": null, "whitening": 0.5}, "rows_planned": 16}',4,NULL,NULL,'5f79a27dcddb9f1c202775ec8baebd952207191b7333edcfcf8410912a265fc3');
CREATE TABLE charges (
    release_id VARCHAR(40) NOT NULL,
    labeler BLOB NOT NULL,
    labels BIGINT NOT NULL,
    PRIMARY KEY (release_id, labeler),
    FOREIGN KEY(release_id) REFERENCES releases (id)
);
INSERT INTO charges VALUES('r0001-70c26955',X'0D8E2AFFC997AEEC54CD9D08CC40C721',1);
INSERT INTO charges VALUES('r0001-70c26955',X'33773B5B6F7DE6B2AB2EA2C990DE12FA',1);
INSERT INTO charges VALUES('r0001-70c26955',X'9CEA67AE47F923C09B0FC413DE298CB5',1);
INSERT INTO charges VALUES('r0001-70c26955',X'EB28B71529A30B566C8A08E404A56952',1);
INSERT INTO charges VALUES('r0002-48fc1952',X'0D8E2AFFC997AEEC54CD9D08CC40C721',1);
INSERT INTO charges VALUES('r0002-48fc1952',X'33773B5B6F7DE6B2AB2EA2C990DE12FA',1);
INSERT INTO charges VALUES('r0002-48fc1952',X'9CEA67AE47F923C09B0FC413DE298CB5',1);
INSERT INTO charges VALUES('r0002-48fc1952',X'EB28B71529A30B566C8A08E404A56952',1);
CREATE TABLE journal (
    number INTEGER NOT NULL,
    at VARCHAR(20) NOT NULL,
    kind VARCHAR(20) NOT NULL,
    body TEXT NOT NULL,
    previous VARCHAR(64) NOT NULL,
    digest VARCHAR(64) NOT NULL,
    PRIMARY KEY (number)
);
INSERT INTO journal VALUES(1,'2026-01-01T00:00:00Z','created','{"schema": 2}','0000000000000000000000000000000000000000000000000000000000000000','af3e8ab502ca272de6e16e9acc4faf32fe4685623b7e454514ea579f5061ddc0');
INSERT INTO journal VALUES(2,'2026-01-01T00:00:00Z','policy','{"policy": 1, "settings": {"composition": "exact", "delta": 1e-05, "epsilon": 3.0, "max_labels_per_labeler": null, "mechanism": "statistic", "releases": 3, "tie_status_public": false, "ties": "zero", "unit": "labeler"}}','af3e8ab502ca272de6e16e9acc4faf32fe4685623b7e454514ea579f5061ddc0','b348dc06dc9cad6a8b4fcf493d611461ec07da374dc387e282d435d4b3a177d0');
INSERT INTO journal VALUES(3,'2026-01-01T00:00:00Z','charged','{"charges": "6fcebe2601ec233434289dae4d344f9fea35ffbde68209ad3fc7fa936f238fb3", "labelers": 4, "labels": 4, "mechanism": "statistic", "prices": {"3": "2648389199691"}, "release": "r0001-70c26955"}','b348dc06dc9cad6a8b4fcf493d611461ec07da374dc387e282d435d4b3a177d0','a31ce001943289f0db030b2b2cfd7794e302a06d59b4baf891f11ab869bc0393');
INSERT INTO journal VALUES(4,'2026-01-01T00:00:00Z','computing','{"release": "r0001-70c26955"}','a31ce001943289f0db030b2b2cfd7794e302a06d59b4baf891f11ab869bc0393','1d79db5c107572bc68dc542d823d21c055244ac7e989378a7a8e7b0b2d87c425');
INSERT INTO journal VALUES(5,'2026-01-01T00:00:00Z','committed','{"files": {"CARD.md": "ed180638c7d54934b569c17dae6a1d07c8aaf5b9ca234458cc59b8ffdb46cbd0", "card.json": "2567850d7b60eda6a190f346804ef22ef11bbdf64c3daab3c0da23324657e8ae", "data.parquet": "26f025934c04e60f76bcd38dfbed04c72511b35d602dcc40d86eff98218e618e", "head.npz": "489c48fe960d80691ce82619be36cc2ac9c9e35d1e6bf49b06f0c57697d29de7"}, "release": "r0001-70c26955", "rows": 24}','1d79db5c107572bc68dc542d823d21c055244ac7e989378a7a8e7b0b2d87c425','06436aa67ffb9e948230d61d824c9c2aaf380a26262cc0176c48e61e5dc341d6');
INSERT INTO journal VALUES(6,'2026-01-01T00:00:00Z','charged','{"charges": "6fcebe2601ec233434289dae4d344f9fea35ffbde68209ad3fc7fa936f238fb3", "labelers": 4, "labels": 4, "mechanism": "statistic", "prices": {}, "release": "r0002-48fc1952"}','06436aa67ffb9e948230d61d824c9c2aaf380a26262cc0176c48e61e5dc341d6','c4d566b175bbb7d5c1ec71b2ef756f15614bac4c41f7e768dcb96a7c1e5c2849');
INSERT INTO journal VALUES(7,'2026-01-01T00:00:00Z','computing','{"release": "r0002-48fc1952"}','c4d566b175bbb7d5c1ec71b2ef756f15614bac4c41f7e768dcb96a7c1e5c2849','0f567bdc6a13fb84a129feb3654599c4a8f27bae90b571020a80462744475c27');
CREATE INDEX ix_releases_idempotency_key ON releases (idempotency_key);
